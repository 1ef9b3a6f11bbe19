// Drives a rank's pending operations: advances the first one of each queue, and sleeps while none can advance. The membership page wakes it
// when another rank made progress, or the node recorded a death.
#pragma once

#include <vector>

#include "runtime/shm/spin.h"
#include "runtime/transport/shm/wait_watch.h"

namespace shoal::runtime {

// Used only by the thread that has the turn to drive (PendingOperations::take_turn).
class ShmProgress {
 public:
  // All arguments outlive this object.
  ShmProgress(ShmGroup& group, PendingOperations& pending, const CommunicatorRequest& request, const Clock& clock)
      : group_(group), pending_(pending), request_(request), watch_(group, request, clock), spin_(spin_of(request)) {}

  // Advances pending operations until `until` is done or the group has failed. Returns Cancelled/Interrupted if request.interrupted() ended
  // it.
  Result<void> drive(const OperationPtr& until);
  // Advances pending operations until no background operation is left or the group has failed. No signal interrupts it.
  Result<void> drive_background();

 private:
  static Spin spin_of(const CommunicatorRequest& request);
  template <class Over>
  Result<void> drive_until(const Over& over, const OperationPtr& until);
  // Polls for a moment where that pays. Returns true once due() does.
  template <class Due>
  bool polls(const Due& due, bool program_waits);
  // Advances the first operation of each queue. Returns true after progress.
  bool advance_all();
  void start(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  void check_wait(const OperationPtr& until);

  ShmGroup& group_;
  PendingOperations& pending_;
  const CommunicatorRequest& request_;
  WaitWatch watch_;
  Spin spin_;
  std::vector<OperationPtr> heads_;
  std::uint64_t round_ = 0;  // number of the next collective's first round
  OperationPtr started_;     // the collective that is in progress
};

}  // namespace shoal::runtime
