#include "actors/session/calls/sent_calls.h"

#include <algorithm>
#include <utility>

namespace shoal::actors {

void SentCalls::add(std::uint64_t number, SentCall call, Spare& spare) {
  if (spare.nodes_.empty()) {
    calls_.emplace_hint(calls_.end(), number, std::move(call));
    return;
  }
  auto node = std::move(spare.nodes_.back());
  spare.nodes_.pop_back();
  node.key() = number;
  node.mapped() = std::move(call);
  calls_.insert(calls_.end(), std::move(node));
}

std::optional<SentCalls::Answered> SentCalls::take(std::uint64_t number, Spare& spare) {
  auto node = calls_.extract(number);
  if (node.empty()) return std::nullopt;
  SentCall& call = node.mapped();
  Answered out{std::move(call.promise), call.task, call.name};
  call.again.reset();
  if (spare.nodes_.size() < Spare::kMax) spare.nodes_.push_back(std::move(node));
  return out;
}

SentCalls::Calls SentCalls::take_all() { return std::exchange(calls_, {}); }

SentCall* SentCalls::find(const ValueFuture& answer) {
  const auto it = std::find_if(calls_.begin(), calls_.end(), [&](const auto& entry) { return entry.second.promise.future() == answer; });
  return it == calls_.end() ? nullptr : &it->second;
}

void SentCalls::drop_copies() {
  for (auto& [n, call] : calls_) {
    if (call.unmade_only) call.again.reset();
  }
}

SentCalls::Lost SentCalls::requeue(UnsentCalls& queue, bool begun, const std::function<void(const SentCall&)>& ended) {
  Lost out;
  auto calls = take_all();
  for (auto it = calls.rbegin(); it != calls.rend(); ++it) {
    SentCall& call = it->second;
    if (call.again && !begun) {
      queue.requeue({std::move(*call.again), {}, std::move(call.promise), call.tries});
      continue;
    }
    ended(call);
    if (call.again && !call.unmade_only) {
      const auto attempts = call.again->attempts ? (*call.again->attempts)++ : static_cast<std::int32_t>(call.task >> 56) + 1;
      call.again->task = task_number(call.task, attempts);
      queue.requeue({std::move(*call.again), {}, std::move(call.promise), call.tries + 1});
      out.tried_again = true;
    } else {
      out.failed.push_back(std::move(call.promise));
    }
  }
  std::reverse(out.failed.begin(), out.failed.end());
  return out;
}

}  // namespace shoal::actors
