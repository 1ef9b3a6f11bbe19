// How a worker executes the calls of its actor: Execution, which has one implementation for each Mode.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "actors/api/context/context.h"
#include "actors/api/worker/instance.h"
#include "actors/session/references/actor_host.h"
#include "actors/session/session.h"

namespace shoal::actors::api {

enum class Mode {
  kSerial,   // one after the other, on the main thread
  kThreads,  // several at once, on threads: the actor has max_concurrency above 1, or concurrency groups
  kLoop,     // several at once, on a loop of the actor's own, like Python's async actors: it has coroutines
};

Mode mode_of(const Concurrency& wants, std::int32_t max_concurrency);

// Runs single calls of this process's actor. Any thread.
class CallRunner {
 public:
  // The context and the instance outlive this object.
  CallRunner(Context& context, Instance& instance) : context_(context), instance_(instance) {}

  Context& context() const { return context_; }
  const Instance& instance() const { return instance_; }
  // Runs a call to its end, and returns its result.
  Result<Value> run(const Incoming& incoming) const;
  // As run(), for a call on a loop. `incoming` must live until the returned task ends; exceptions of a coroutine pass through.
  Task<Value> start(const Incoming& incoming) const;

 private:
  static Task<Value> now(CallRunner self, const Incoming& incoming) { co_return self.run(incoming); }

  Context& context_;
  Instance& instance_;
};

// Answers a call that ended, and forgets its cancellation. Only while the loop is owned.
void send_answer(CancelledCalls& cancelled, Incoming& incoming, const Result<Value>& result, runtime::Flush flush);

class Execution {
 public:
  virtual ~Execution() = default;
  // Executes calls until one asks the actor to end, and returns that: a kRelease. May be called again. Main thread.
  virtual Incoming run_until_release() = 0;
  // Called by a handler of the loop when a call is cancelled that has left the queue.
  virtual void cancel(CallKey call) = 0;
};

// The parts of an Execution.
struct ExecutionParts {
  CallRunner runner;
  std::shared_ptr<CallQueue> queue;
  std::deque<Incoming> early;  // calls that left the queue before the actor was constructed: they go first
  std::int32_t max_concurrency = 1;
};
// Only while the loop is owned.
std::unique_ptr<Execution> make_execution(Mode mode, ExecutionParts parts);

// Waits in `loop` until next() returns a call. next() is called while the loop is owned.
template <class Next>
auto wait_for_call(SessionLoop& loop, Next&& next) {
  decltype(next()) out;
  while (!loop.wait([&] { return (out = next()).has_value(); })) {  // fails for an interruption by a signal, which a worker ignores
  }
  return *std::move(out);
}

// Removes the first call.
inline Incoming pop(std::deque<Incoming>& from) {
  Incoming out = std::move(from.front());
  from.pop_front();
  return out;
}

}  // namespace shoal::actors::api
