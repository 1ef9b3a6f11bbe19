#include "actors/api/worker/concurrent_calls.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::actors::api {

namespace {

std::pair<std::uint64_t, std::uint64_t> pair_of(CallKey call) { return {call.peer, call.request}; }

std::vector<std::size_t> sizes_of(const std::vector<std::int32_t>& groups, std::int32_t without_group) {
  std::vector<std::size_t> out = {static_cast<std::size_t>(without_group)};
  out.insert(out.end(), groups.begin(), groups.end());
  return out;
}

}  // namespace

void CallScheduler::add(Turn turn) {
  Group& group = groups_[turn.group];
  const std::size_t bytes = turn.incoming.call.inline_bytes();
  if (!group.waiting.empty() && (group.waiting.size() >= max_waiting_ || group.bytes + bytes > max_bytes_)) {
    return turn.incoming.fail(resource_exhausted(
        fmt::format("{} calls with {} bytes of arguments wait for this actor's methods of that group", group.waiting.size(), group.bytes)));
  }
  group.bytes += bytes;
  group.waiting.push_back({next_++, std::move(turn.incoming)});
}

std::optional<Turn> CallScheduler::next() {
  const auto none = groups_.size();
  std::size_t first = none;
  for (std::size_t i = 0; i < none; ++i) {
    if (groups_[i].free == 0 || groups_[i].waiting.empty()) continue;
    if (first == none || groups_[i].waiting.front().number < groups_[first].waiting.front().number) first = i;
  }
  if (first == none) return std::nullopt;
  Group& group = groups_[first];
  --group.free;
  std::optional<Turn> out(Turn{first, std::move(group.waiting.front().incoming)});
  group.waiting.pop_front();
  group.bytes -= out->incoming.call.inline_bytes();
  return out;
}

std::optional<Incoming> CallScheduler::cancel(CallKey call) {
  for (Group& group : groups_) {
    const auto it = std::find_if(group.waiting.begin(), group.waiting.end(), [&](const Waiting& w) { return w.incoming.key() == call; });
    if (it == group.waiting.end()) continue;
    std::optional<Incoming> out(std::move(it->incoming));
    group.waiting.erase(it);
    group.bytes -= out->call.inline_bytes();
    return out;
  }
  return std::nullopt;
}

ConcurrentCalls::ConcurrentCalls(ExecutionParts parts)
    : runner_(parts.runner),
      loop_(runner_.context().session().loop()),
      cancelled_(runner_.context().hub().cancelled),
      queue_(std::move(parts.queue)),
      sizes_(sizes_of(runner_.instance().concurrency().groups, parts.max_concurrency)),
      scheduler_(sizes_) {
  queue_->hands_on();
  while (!parts.early.empty()) add(pop(parts.early));
}

Incoming ConcurrentCalls::run_until_release(const std::function<void(Turn)>& begin) {
  while (true) {
    Turn turn = wait_for_call(loop_, [this] { return next(); });
    turn.incoming.taken.began();
    if (turn.incoming.call.method == kRelease) return std::move(turn.incoming);
    begin(std::move(turn));
  }
}

void ConcurrentCalls::add(Incoming incoming) {
  if (incoming.call.method == kRelease) return releases_.push_back(std::move(incoming));
  const std::size_t group = runner_.instance().group_of(incoming.call.method);
  scheduler_.add({group, std::move(incoming)});
}

std::optional<Turn> ConcurrentCalls::next() {
  while (!queue_->empty()) add(queue_->pop());
  if (auto turn = scheduler_.next()) {
    begun_.insert(pair_of(turn->incoming.key()));
    return turn;
  }
  if (releases_.empty() || !begun_.empty()) return std::nullopt;
  return Turn{0, pop(releases_)};
}

void ConcurrentCalls::ended(Turn turn, Result<Value> result) {
  loop_.own([&] {
    begun_.erase(pair_of(turn.incoming.key()));
    send_answer(cancelled_, turn.incoming, result, runtime::Flush::kNow);
    scheduler_.end_call(turn.group);
  });
}

bool ConcurrentCalls::cancel(CallKey call) {
  if (auto waits = scheduler_.cancel(call)) {
    waits->fail(call_cancelled(waits->call.method));
    return false;
  }
  // A call that has neither begun nor waits is answered already. Only an answer removes the note of a cancellation, so this one would stay.
  if (!begun_.contains(pair_of(call))) return false;
  cancelled_.note(call);
  return true;
}

}  // namespace shoal::actors::api
