// Checks a wait that makes no progress: for late ranks, ranks that have left, cycles of waits, and time limits. A check that finds one of
// these warns, or fails the group.
#pragma once

#include <optional>
#include <span>

#include "runtime/transport/communicator_request.h"
#include "runtime/transport/pending_operations.h"
#include "runtime/transport/shm/shm_group.h"

namespace shoal::runtime {

// Used only by the thread that has the turn to drive.
class WaitWatch {
 public:
  // All arguments outlive this object.
  WaitWatch(ShmGroup& group, const CommunicatorRequest& request, const Clock& clock) : group_(group), request_(request), clock_(clock) {}

  void begin() { left_since_.reset(); }
  // To be called when there was no progress for a while. The program waits for `at`, one of the `heads`. `blocked`: no other thread of the
  // program could make a call that ends the wait.
  void check(std::span<const OperationPtr> heads, const Operation& at, bool blocked);
  void end();

 private:
  // The rank that an operation waits for; -1 if there is none.
  int missing(const Operation& operation) const;
  std::string describe(int rank) const;
  void check_left(const Operation& operation, int missing, TimePoint now);
  void warn_if_late(const Operation& operation, int missing, TimePoint now);
  void check_limit(const Operation& operation, TimePoint now);

  ShmGroup& group_;
  const CommunicatorRequest& request_;
  const Clock& clock_;
  std::optional<TimePoint> left_since_;  // when this wait found that the missing rank has left
  const Operation* late_ = nullptr;      // the operation to which warn_at_ belongs
  TimePoint warn_at_{};                  // when to warn that late_ still waits
};

}  // namespace shoal::runtime
