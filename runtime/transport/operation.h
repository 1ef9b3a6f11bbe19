// An operation of a communicator that makes progress in steps: a state machine that advances as far as possible and never blocks. One
// thread at a time advances the operations of a communicator (pending_operations.h).
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "runtime/transport/communicator.h"

namespace shoal::runtime {

class Operation {
 public:
  explicit Operation(Call call, TimePoint began) : call_(std::move(call)), began_(began) {}
  virtual ~Operation() = default;

  // Advances as far as possible. Returns true after progress, InvalidArgument/Diverged if the ranks' calls differ.
  virtual Result<bool> advance() = 0;
  virtual bool complete() const = 0;
  // A rank that the operation waits for; -1 if there is none.
  virtual int missing() const = 0;
  virtual std::string what() const = 0;

  const Call& call() const { return call_; }
  TimePoint began() const { return began_; }
  bool ended() const { return ended_.load(std::memory_order_acquire); }
  void set_ended() { ended_.store(true, std::memory_order_release); }
  // True once wait() has reported a failure: the caller may have freed the buffers. Guarded by the mutex of PendingOperations.
  bool abandoned() const { return abandoned_; }
  void abandon() { abandoned_ = true; }

 private:
  const Call call_;
  const TimePoint began_;
  std::atomic<bool> ended_{false};
  bool abandoned_ = false;
};
using OperationPtr = std::shared_ptr<Operation>;

}  // namespace shoal::runtime
