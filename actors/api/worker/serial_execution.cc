#include "actors/api/worker/serial_execution.h"

#include <algorithm>

namespace shoal::actors::api {

SerialExecution::SerialExecution(ExecutionParts parts)
    : runner_(parts.runner),
      loop_(runner_.context().session().loop()),
      cancelled_(runner_.context().hub().cancelled),
      queue_(std::move(parts.queue)),
      early_(std::move(parts.early)) {}

Incoming SerialExecution::run_until_release() {
  std::optional<Ended> ended;
  while (true) {
    // Answers the last call and waits for the next one while it owns the loop once, since a change of the loop's owner takes time.
    Incoming incoming = wait_for_call(loop_, [&] { return next(ended); });
    if (incoming.call.method == kRelease) return incoming;
    auto result = runner_.run(incoming);
    ended.emplace(std::move(incoming), std::move(result));
  }
}

std::optional<Incoming> SerialExecution::next(std::optional<Ended>& ended) {
  if (ended) {
    // Answers to calls that arrived together are sent together.
    send_answer(cancelled_, ended->incoming, ended->result, queue_->empty() ? runtime::Flush::kNow : runtime::Flush::kLater);
    ended.reset();
    now_ = {};
  }
  if (early_.empty() && queue_->empty()) return std::nullopt;
  std::optional<Incoming> out(early_.empty() ? queue_->pop() : pop(early_));
  now_ = out->key();
  return out;
}

void SerialExecution::cancel(CallKey call) {
  // A call that neither runs nor waits is answered already. Only an answer removes the note of a cancellation, so this one would stay.
  const auto waits = [&](const Incoming& incoming) { return incoming.key() == call; };
  if (call == now_ || std::any_of(early_.begin(), early_.end(), waits)) cancelled_.note(call);
}

}  // namespace shoal::actors::api
