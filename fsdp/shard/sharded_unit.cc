#include "fsdp/shard/sharded_unit.h"

#include <fmt/format.h>

namespace shoal::fsdp {

Result<std::unique_ptr<ShardedUnit>> ShardedUnit::make(std::string name, Layout layout, const Fd& arena, int rank, int world_size,
                                                       Options options) {
  std::unique_ptr<ShardedUnit> unit(new ShardedUnit(std::move(name), std::move(layout), rank, world_size));
  const std::size_t bytes = unit->layout_.bytes();
  SHOAL_TRY(unit->arena_, runtime::map(arena, bytes, runtime::Access::kReadWrite));
  if (options.lease_guard && bytes > 0) {
    SHOAL_TRY(unit->guarded_, runtime::map(arena, bytes, runtime::Access::kRead));
    unit->guarded_.forbid();
    unit->guard();
  }
  return unit;
}

void ShardedUnit::guard() {
  guard_.reset();  // two of one range would both be asked
  guard_.emplace(guarded_.data(), layout_.bytes(), fmt::format("unit {} on rank {}", name_.empty() ? "(root)" : name_, rank_));
}

void ShardedUnit::rename(std::string name) {
  name_ = std::move(name);
  if (guard_) guard();
}

std::byte* ShardedUnit::own_rows(std::size_t parameter) const {
  return arena_.data() + layout_.begin_of(layout_.placed()[parameter], world_size_, Rank{rank_});
}

std::byte* ShardedUnit::whole(std::size_t parameter) const {
  return (guard_ ? guarded_ : arena_).data() + layout_.placed()[parameter].offset_bytes;
}

void ShardedUnit::take_lease(std::uint64_t step) {
  if (leased_) return;
  leased_ = true;
  if (guard_) {
    guard_->set_step(step);
    guarded_.allow(runtime::Access::kRead);
  }
}

void ShardedUnit::drop_lease() {
  if (!leased_) return;
  leased_ = false;
  if (guard_) guarded_.forbid();
}

}  // namespace shoal::fsdp
