// The call that a thread runs: whether anybody still wants its answer, and whose calls are made in it.
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

// Of a method or a remote function that runs in this thread: whether somebody cancelled its call (future.h: cancel). It goes on to its end,
// so one that takes long looks now and then. False outside of calls. In a coroutine nothing has to be looked at: what it awaits ends.
bool is_cancelled();
// The same as a Result, for SHOAL_OK: Cancelled/TaskCancelled.
Result<void> check_cancelled();
// The process that runs it, for functions that call others. Only in a call.
Context& context();

}  // namespace shoal

namespace shoal::actors::api {

// Calls that this process has taken from its queue and not answered, and whose answer nobody wants any more.
class CancelledCalls {
 public:
  static constexpr std::size_t kMax = 4096;  // then the oldest are told nothing

  // Only while the loop is owned.
  void note(CallKey call);
  bool has(CallKey call) const;
  void forget(CallKey call);
  // Any thread: false as long as there is none.
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  std::deque<CallKey> calls_;
  std::atomic<bool> any_ = false;
};

struct RunningCall {
  Context* context = nullptr;  // null: none
  CallKey key = {};
  std::string_view name = {};  // of the method or the function
};

inline constinit thread_local RunningCall this_threads_call;

// The thread runs this one, as long as this lives.
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
