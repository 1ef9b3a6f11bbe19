// The call that a thread runs: its cancellation, and the parent of calls made in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <string_view>
#include <utility>

#include "actors/value/call.h"
#include "runtime/core/result.h"

namespace shoal {

class Context;

// For a method or remote function that runs in this thread: true once its call was cancelled (future.h: cancel). The call goes on to its
// end, so long ones should check this. False outside of calls. Coroutines need no check, since a cancelled one ends at its await.
bool is_cancelled();
// As is_cancelled(), as a Result for SHOAL_OK: Cancelled/TaskCancelled once the call was cancelled.
Result<void> check_cancelled();
// The Context of this process, for functions that call others. To be called within a call only.
Context& context();

}  // namespace shoal

namespace shoal::actors::api {

// Cancelled calls that this process has taken from its queue and not answered.
class CancelledCalls {
 public:
  static constexpr std::size_t kMax = 4096;  // beyond that the oldest are forgotten

  // Only while the loop is owned.
  void note(CallKey call);
  bool has(CallKey call) const;
  void forget(CallKey call);
  // Returns false if there are none. Any thread.
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  std::deque<CallKey> calls_;
  std::atomic<bool> any_ = false;
};

struct RunningCall {
  Context* context = nullptr;  // null: no call
  CallKey key = {};
  std::string_view name = {};  // the name of the method or function
};

inline constinit thread_local RunningCall this_threads_call;

// While this object lives, its thread counts as running the call.
class RunsCall {
 public:
  explicit RunsCall(const RunningCall& call) : before_(std::exchange(this_threads_call, call)) {}
  ~RunsCall() { this_threads_call = before_; }
  RunsCall(const RunsCall&) = delete;
  RunsCall& operator=(const RunsCall&) = delete;

 private:
  const RunningCall before_;
};

}  // namespace shoal::actors::api
