#include "actors/session/link/session_loop.h"

namespace shoal::actors {

using runtime::LoopThread;

SessionLoop::SessionLoop(LoopThread& thread, std::function<bool()> interrupted)
    : clock_(runtime::make_real_clock(loop_)), thread_(thread), interrupted_(std::move(interrupted)) {}

Result<void> SessionLoop::wait(const std::function<bool()>& ready, Deadline deadline) {
  switch (thread_.wait(ready, deadline, interrupted_)) {
    case LoopThread::Woken::kReady:
      return {};
    case LoopThread::Woken::kDeadline:
      return fail(deadline_exceeded("it was not ready in time"));
    case LoopThread::Woken::kInterrupted:
      return fail(cancelled("interrupted by a signal").with_reason("Interrupted"));
  }
  return fail(internal("a wait returned without a result"));
}

SessionLoop::Deadline SessionLoop::deadline_in(runtime::Duration limit) const {
  const auto now = clock_->now();
  return limit < LoopThread::kForever - now ? now + limit : LoopThread::kForever;
}

}  // namespace shoal::actors
