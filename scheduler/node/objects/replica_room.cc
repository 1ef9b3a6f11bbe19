#include "scheduler/node/objects/replica_room.h"

#include <fmt/format.h>

namespace shoal::scheduler {

namespace {
constexpr std::chrono::seconds kStoodStill(1);
}  // namespace

void ReplicaRoom::take(const Object& object, std::uint64_t transfer, std::uint64_t bytes, Then then) {
  Waiting waiting{object, transfer, bytes, std::move(then), clock_.now()};
  if (waiting_.empty()) checked_at_ = waiting.since;
  if (waiting_.empty() || bytes <= options_.uncounted_bytes) {
    if (const auto decided = decide(waiting)) return waiting.then(*decided);
  }
  waiting_.push_back(std::move(waiting));
  if (waiting_.size() == 1) check();
}

void ReplicaRoom::check() {
  const auto now = clock_.now();
  if (const auto stood_still = now - checked_at_ - options_.room_interval; stood_still > kStoodStill) {
    // Patience does not count the time in which this process stood still.
    for (Waiting& waiting : waiting_) waiting.since += stood_still;
  }
  checked_at_ = now;
  while (!waiting_.empty()) {
    const bool wanted = events_.wanted(waiting_.front().object, waiting_.front().transfer);
    auto decided = wanted ? decide(waiting_.front()) : std::optional<Result<void>>(Result<void>());
    if (!decided) break;
    const Waiting over = std::move(waiting_.front());
    waiting_.pop_front();
    if (wanted) over.then(std::move(*decided));
  }
  if (!waiting_.empty()) looking_ = clock_.after(options_.room_interval, [this] { check(); });
}

std::optional<Result<void>> ReplicaRoom::decide(Waiting& waiting) {
  const auto board = uncounted_.board();
  if (waiting.bytes <= options_.uncounted_bytes || !board || board->limit() == 0) return Result<void>();
  const std::uint64_t limit = board->limit();
  const auto total = board->total();
  const auto now = clock_.now();
  const bool requests = !waiting.requested_at || now - *waiting.requested_at > options_.request_interval;
  if (total.kept + waiting.bytes <= limit || (requests && waiting.bytes <= limit && events_.evict(total.kept + waiting.bytes - limit))) {
    copies_.count(waiting.object, waiting.bytes);
    return Result<void>();
  }
  const auto full = [&](const std::string& why) -> Result<void> {
    return fail(resource_exhausted(fmt::format("no room for an object of {} bytes from another node: {} of the node's {} bytes for objects "
                                               "are taken, {} lie in files; {}",
                                               waiting.bytes, total.kept, limit, total.spilled, why))
                    .with_reason("ObjectStoreFull")
                    .with_hint("release references and arrays that are not needed, or start with a larger object_store_memory"));
  };
  if (waiting.bytes > limit) return full("it is larger than all of that");
  if (total.kept < waiting.before.kept || total.spilled > waiting.before.spilled) waiting.since = now;
  waiting.before = total;
  if (now - waiting.since > options_.patience) {
    return full(spiller_.why_no_file().empty() ? "processes read all remaining objects" : spiller_.why_no_file());
  }
  if (requests) {
    spiller_.spill(waiting.bytes);
    events_.want_room(waiting.bytes);
    waiting.requested_at = now;
  }
  return std::nullopt;
}

}  // namespace shoal::scheduler
