// Drives a rank's pending operations: advances their heads, and sleeps while none of them can advance. The membership page wakes it after
// another rank's progress, and when the node records a death.
#pragma once

#include <vector>

#include "runtime/transport/shm/wait_watch.h"

namespace shoal::runtime {

// Belongs to the driving thread (PendingOperations::take_turn).
class ShmProgress {
 public:
  // All arguments outlive it.
  ShmProgress(ShmGroup& group, PendingOperations& pending, const CommunicatorRequest& request, const Clock& clock)
      : group_(group), pending_(pending), request_(request), watch_(group, request, clock) {}

  // Advances pending operations until `until` is done or the group has failed. Returns Cancelled/Interrupted if request.interrupted ended
  // it.
  Result<void> drive(const OperationPtr& until);
  // The same until no background operation is left. Nothing interrupts it.
  Result<void> drive_background();

 private:
  template <class Over>
  Result<void> drive_until(const Over& over, const OperationPtr& until);
  // Returns true after progress.
  bool advance_all();
  void start(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  void look(const OperationPtr& until);

  ShmGroup& group_;
  PendingOperations& pending_;
  const CommunicatorRequest& request_;
  WaitWatch watch_;
  std::vector<OperationPtr> heads_;
  std::uint64_t round_ = 0;  // first round of the next collective
  OperationPtr started_;     // the collective under way
};

}  // namespace shoal::runtime
