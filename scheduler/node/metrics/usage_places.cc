#include "scheduler/node/metrics/usage_places.h"

#include <utility>

namespace shoal::scheduler {

using runtime::UsageBoard;

std::optional<UsageBoard> UsagePlaces::board() const { return mapping_ ? std::optional<UsageBoard>(mapping_->data()) : std::nullopt; }

Result<std::optional<Fd>> UsagePlaces::share(std::int32_t& place) {
  if (limit_ == 0) return std::nullopt;
  if (!mapping_) {
    SHOAL_TRY(memory_, runtime::make_memory("shoal:board", UsageBoard::kBytes));
    SHOAL_TRY(mapping_, runtime::map(memory_, UsageBoard::kBytes, runtime::Access::kReadWrite));
    board()->set_limit(limit_);
    taken_.insert(own_);
  }
  if (place < 0) {
    std::int32_t free = 0;
    while (taken_.contains(free)) ++free;
    if (static_cast<std::size_t>(free) >= UsageBoard::kMaxMembers) return std::nullopt;
    taken_.insert(free);
    place = free;
    board()->clear(static_cast<std::size_t>(free));
    board()->set_members(static_cast<std::size_t>(*taken_.rbegin()) + 1);
  }
  SHOAL_TRY(Fd copy, runtime::duplicate(memory_));
  return std::optional<Fd>(std::move(copy));
}

void UsagePlaces::leave(std::int32_t place) {
  board()->clear(static_cast<std::size_t>(place));
  taken_.erase(place);
}

}  // namespace shoal::scheduler
