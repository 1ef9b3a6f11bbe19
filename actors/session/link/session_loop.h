// The event loop of a process with a session, as the process's threads use it. A thread owns the loop for a moment, or waits and meanwhile
// runs it.
//
// Any thread may call any member; a handler of the loop may only call post(), clock() and deadline_in().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/loop_thread.h"

namespace shoal::actors {

class SessionLoop {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // `thread` runs loop(): it is made after this object and destroyed before it. A wait polls `interrupted`, and ends when that returns
  // true.
  SessionLoop(runtime::LoopThread& thread, std::function<bool()> interrupted);
  SessionLoop(const SessionLoop&) = delete;
  SessionLoop& operator=(const SessionLoop&) = delete;

  // Runs fn while this thread owns the loop.
  template <class F>
  auto own(F&& fn) {
    return thread_.own(std::forward<F>(fn));
  }
  // Waits until ready() holds; ready() is called while the loop is owned. Returns DeadlineExceeded after `deadline`, Cancelled/Interrupted
  // if a signal ended the wait.
  Result<void> wait(const std::function<bool()>& ready, Deadline deadline = runtime::LoopThread::kForever);
  // The time `limit` from now, for wait(). Duration::max() means no deadline.
  Deadline deadline_in(runtime::Duration limit) const;
  // To be called by a thread before it sleeps on a descriptor that a handler sets: another thread then runs the loop
  // (LoopThread::hand_over).
  void hand_over() { thread_.hand_over(); }
  void post(std::function<void()> fn) { loop_.post(std::move(fn)); }

  runtime::Loop& loop() { return loop_; }
  // May be kept after the session has ended.
  const std::shared_ptr<runtime::Clock>& clock() const { return clock_; }

 private:
  runtime::Loop loop_;
  const std::shared_ptr<runtime::Clock> clock_;
  runtime::LoopThread& thread_;
  const std::function<bool()> interrupted_;
};

}  // namespace shoal::actors
