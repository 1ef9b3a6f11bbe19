#include "actors/api/worker/execution.h"

#include "actors/api/worker/loop_execution.h"
#include "actors/api/worker/serial_execution.h"
#include "actors/api/worker/thread_execution.h"

namespace shoal::actors::api {

Mode mode_of(const Concurrency& wants, std::int32_t max_concurrency) {
  if (wants.on_loop) return Mode::kLoop;
  return max_concurrency > 1 || !wants.groups.empty() ? Mode::kThreads : Mode::kSerial;
}

std::unique_ptr<Execution> make_execution(Mode mode, ExecutionParts parts) {
  switch (mode) {
    case Mode::kSerial:
      return std::make_unique<SerialExecution>(std::move(parts));
    case Mode::kThreads:
      return std::make_unique<ThreadExecution>(std::move(parts));
    case Mode::kLoop:
      return std::make_unique<LoopExecution>(std::move(parts));
  }
  return nullptr;
}

Result<Value> CallRunner::run(const Incoming& incoming) const {
  const Call& call = incoming.call;
  if (call.method == kConstruct) return encode(List<>());  // does nothing: the actor was made from its creation spec already
  if (call.method == kHandOver) return context_.functions().hand_over(call.args);
  const RunsCall runs({&context_, incoming.key(), call.method});
  SHOAL_OK(check_cancelled());  // fails if the call was cancelled while it waited in this process
  return instance_.call(call.method, {call.args, &call.deps, &context_.hub(), &incoming});
}

Task<Value> CallRunner::start(const Incoming& incoming) const {
  const Call& call = incoming.call;
  return call.method == kConstruct || call.method == kHandOver
             ? now(*this, incoming)
             : instance_.start(call.method, {call.args, &call.deps, &context_.hub(), &incoming});
}

void send_answer(CancelledCalls& cancelled, Incoming& incoming, const Result<Value>& result, runtime::Flush flush) {
  if (cancelled.any()) cancelled.forget(incoming.key());
  result ? incoming.reply(*result, flush) : incoming.fail(result.error());
}

}  // namespace shoal::actors::api
