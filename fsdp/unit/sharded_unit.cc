#include "fsdp/unit/sharded_unit.h"

#include <algorithm>

#include <fmt/format.h>

#include "fsdp/kernels/kernels.h"

namespace shoal::fsdp {

ShardedUnit::ShardedUnit(std::string name, Layout layout, int rank, Grid grid)
    : name_(std::move(name)), layout_(std::move(layout)), rank_(rank), grid_(grid) {
  replica_begin_ = layout_.replica_bytes(grid_.shards()) * static_cast<std::size_t>(grid_.replica_of(rank_));
  for (std::size_t i = 0; i < layout_.placed().size(); ++i) {
    own_begins_.push_back(layout_.own_offset(i, grid_.shards(), grid_.shard_of(rank_)));
  }
}

Result<std::unique_ptr<ShardedUnit>> ShardedUnit::make(std::string name, Layout layout, const Fd& arena, int rank, Grid grid,
                                                       Options options, const ShardedUnit* before) {
  std::unique_ptr<ShardedUnit> unit(new ShardedUnit(std::move(name), std::move(layout), rank, grid));
  const std::size_t bytes = unit->layout_.arena_bytes(grid);
  if (before != nullptr && before->arena_->size() == bytes) {
    unit->arena_ = before->arena_;
  } else {
    SHOAL_TRY(runtime::Mapping mapped, runtime::map(arena, bytes, runtime::Access::kReadWrite));
    unit->arena_ = std::make_shared<const runtime::Mapping>(std::move(mapped));
  }
  if (options.lease_guard && bytes > 0) {
    SHOAL_TRY(unit->guarded_, runtime::map(arena, bytes, runtime::Access::kRead));
    unit->guarded_.forbid();
    unit->guard();
  }
  return unit;
}

void ShardedUnit::guard() {
  guard_.reset();  // removes the old entry first, or the range would have two names
  guard_.emplace(guarded_.data() + replica_begin_, layout_.bytes(),
                 fmt::format("unit {} on rank {}", name_.empty() ? "(root)" : name_, rank_));
}

void ShardedUnit::rename(std::string name) {
  name_ = std::move(name);
  if (guard_) guard();
}

bool ShardedUnit::fits_any_mesh() const {
  const auto& placed = layout_.placed();
  return grid_.replicas == 1 && std::all_of(placed.begin(), placed.end(), [](const Placed& p) { return p.in_place; });
}

std::byte* ShardedUnit::own(std::size_t parameter) const { return arena_->data() + replica_begin_ + own_begins_[parameter]; }

std::byte* ShardedUnit::whole(std::size_t parameter) const {
  return (guard_ ? guarded_ : *arena_).data() + replica_begin_ + layout_.placed()[parameter].offset_bytes;
}

void ShardedUnit::publish_own() {
  for (std::size_t i = 0; i < layout_.placed().size(); ++i) {
    const Placed& p = layout_.placed()[i];
    if (p.in_place || p.parameter.external) continue;
    const Piece piece = piece_of(p, grid_.shards(), grid_.shard_of(rank_));
    const std::size_t from = dtype_bytes(p.parameter.dtype), to = dtype_bytes(p.compute_dtype());
    std::byte* const out = arena_->data() + replica_begin_ + p.offset_bytes;
    for (std::size_t k = 0; k < piece.runs; ++k) {
      cast(p.parameter.dtype, own(i) + k * piece.length * from, p.compute_dtype(), out + (piece.begin + k * piece.stride) * to,
           piece.length);
    }
  }
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
