// The checks of a wait that makes no progress: late ranks, ranks that have left, cycles of waits, time limits. Each of them ends in a
// warning or in the group's failure.
#pragma once

#include <optional>
#include <span>

#include "runtime/transport/communicator_request.h"
#include "runtime/transport/shm/pending_operations.h"
#include "runtime/transport/shm/shm_group.h"

namespace shoal::runtime {

// Belongs to the driving thread.
class WaitWatch {
 public:
  // All arguments outlive it.
  WaitWatch(ShmGroup& group, const CommunicatorRequest& request, const Clock& clock) : group_(group), request_(request), clock_(clock) {}

  void begin() { left_since_.reset(); }
  // Called without progress for a while. The program waits for `at`, one of the `heads`. `blocked`: none of its threads could end the wait.
  void look(std::span<const OperationPtr> heads, const ShmOperation& at, bool blocked);
  void end();

 private:
  // The rank that an operation waits for, or -1.
  int missing(const ShmOperation& operation) const;
  std::string describe(int rank) const;
  void check_left(const ShmOperation& operation, int missing, TimePoint now);
  void warn_if_late(const ShmOperation& operation, int missing, TimePoint now);
  void check_limit(const ShmOperation& operation, TimePoint now);

  ShmGroup& group_;
  const CommunicatorRequest& request_;
  const Clock& clock_;
  std::optional<TimePoint> left_since_;  // when this wait found that the missing rank has left
  const ShmOperation* late_ = nullptr;   // the last operation to be late
  TimePoint warn_at_{};                  // time of its next warning
};

}  // namespace shoal::runtime
