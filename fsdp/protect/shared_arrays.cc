#include "fsdp/protect/shared_arrays.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {
constexpr std::size_t kAlignment = 64;

constexpr std::size_t rounded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void drop_counters(std::vector<StateSpec>& states) {
  std::erase_if(states, [](const StateSpec& s) { return s.name == "step"; });
}

}  // namespace

bool SharedArrays::possible(const Units& units) {
  return std::ranges::all_of(units, [](const auto& unit) {
    const auto& placed = unit->layout().placed();
    return unit->grid().replicas == 1 && std::ranges::all_of(placed, [](const Placed& p) { return p.outer <= 1 && !p.parameter.external; });
  });
}

Result<std::unique_ptr<SharedArrays>> SharedArrays::open(const Units& units, std::vector<StateSpec> states, const std::string& key,
                                                         const std::shared_ptr<SharedArrays>& before, const OpenMemory& open) {
  drop_counters(states);
  std::unique_ptr<SharedArrays> out(new SharedArrays(key, std::move(states)));
  SHOAL_TRY(out->places_, places_of(units, out->states_));
  const std::size_t bytes = out->places_.empty() ? 0 : rounded(out->places_.back().offset + out->places_.back().bytes);
  SHOAL_TRY(const Fd memory, open(key, bytes));
  if (before && before->key_ == key && before->memory_->size() == bytes) {
    out->memory_ = before->memory_;
  } else {
    SHOAL_TRY(runtime::Mapping mapped, runtime::map(memory, bytes, runtime::Access::kReadWrite));
    out->memory_ = std::make_shared<const runtime::Mapping>(std::move(mapped));
  }
  return out;
}

Result<std::vector<SharedArrays::Range>> SharedArrays::places_of(const Units& units, const std::vector<StateSpec>& states) {
  std::vector<Range> out;
  std::size_t next = 0;
  for (const StateSpec& s : states) {
    if (s.unit >= units.size() || s.parameter >= units[s.unit]->layout().placed().size())
      return fail(invalid_argument(fmt::format("the state {} belongs to no parameter", s.name)));
    out.push_back({next, units[s.unit]->layout().placed()[s.parameter].numel * dtype_bytes(s.dtype)});
    next = rounded(next + out.back().bytes);
  }
  return out;
}

bool SharedArrays::fits(const Units& units, std::vector<StateSpec> states) const {
  drop_counters(states);
  const auto places = places_of(units, states);
  return places && states == states_ && *places == places_;
}

std::optional<std::size_t> SharedArrays::find(const StateSpec& state) const {
  const auto at = std::ranges::find(states_, state);
  if (at == states_.end()) return std::nullopt;
  return places_[static_cast<std::size_t>(at - states_.begin())].offset;
}

void SharedArrays::populate(const Units& units) const {
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const ShardedUnit& unit = *units[states_[i].unit];
    const Piece piece = piece_of(unit.layout().placed()[states_[i].parameter], unit.grid().shards(), unit.grid().shard_of(unit.rank()));
    const std::size_t size = dtype_bytes(states_[i].dtype);
    memory_->populate(places_[i].offset + piece.begin * size, piece.numel() * size);
  }
}

}  // namespace shoal::fsdp
