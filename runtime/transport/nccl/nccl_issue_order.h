// The order in which a process puts NCCL's work on a device: one thread at a time, for all communicators of the device.
//
// NCCL hangs if calls to communicators of one device run in parallel, or in another order on another rank. So a thread keeps its turn until
// NCCL has put its calls on the stream. The order of issue is then the program's, also among groups. A thread gives its turn back early
// where NCCL connects ranks first, since this needs the other ranks' calls: theirs may come behind the calls of other threads.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/device/device.h"
#include "runtime/loop/clock.h"

namespace shoal::runtime {

class NcclIssueOrder {
 public:
  // The order of the device, which all groups of this process share: NCCL and its rule belong to the process.
  static std::shared_ptr<NcclIssueOrder> of(const Device& device);

  // A thread's right to issue, until this object ends.
  class Turn {
   public:
    explicit Turn(NcclIssueOrder& order) : order_(&order) {}
    Turn(Turn&& other) noexcept : order_(std::exchange(other.order_, nullptr)) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn() {
      if (order_ != nullptr) order_->give_back();
    }

   private:
    NcclIssueOrder* order_;
  };

  struct Limits {
    const Clock* clock = nullptr;
    Duration timeout{};
    std::function<bool()> interrupted = {};             // polled without a lock; may be empty
    std::function<std::optional<Error>()> failed = {};  // polled as `interrupted`: the group's failure, which ends the wait
  };
  // Waits for the turn. DeadlineExceeded/Late after the timeout, Cancelled/Interrupted after a signal, `failed`'s error after that.
  // InvalidArgument if this thread has the turn: a signal handler calls a collective while the program's call is under way.
  Result<Turn> take(const Limits& limits);
  // Returns nothing if another thread has the turn.
  std::optional<Turn> try_take();

 private:
  void give_back();

  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;
  std::thread::id owner_;
};

}  // namespace shoal::runtime
