#include "fsdp/protect/protected_shard.h"

#include <fmt/format.h>

namespace shoal::fsdp {

Result<StepRecord::Spec> ProtectedShard::spec_of(int rank, std::uint64_t step) const {
  StepRecord::Spec spec{.rank = rank, .grid = units_.front()->grid(), .step = step, .units = {}, .arrays = {}};
  const auto piece = [&](std::size_t unit, std::size_t parameter) {
    const Grid grid = units_[unit]->grid();
    return piece_of(units_[unit]->layout().placed()[parameter], grid.shards(), grid.shard_of(rank));
  };
  for (std::uint32_t u = 0; u < units_.size(); ++u) {
    const ShardedUnit& unit = *units_[u];
    if (unit.arena_key().empty()) return fail(invalid_argument(fmt::format("unit {} lies in no memory of a node", unit.label())));
    spec.units.push_back({unit.arena_key(), unit.arena().size()});
    for (std::uint32_t p = 0; p < unit.layout().placed().size(); ++p) {
      const auto& parameter = unit.layout().placed()[p].parameter;
      if (parameter.external)
        return fail(invalid_argument(fmt::format("parameter {} of unit {} lies outside of the arena", parameter.name, unit.label())));
      const auto offset = static_cast<std::size_t>(unit.own(p) - unit.arena().data());
      spec.arrays.push_back({"param", u, p, parameter.dtype, piece(u, p), unit.own_bytes(p) == 0 ? 0 : offset});
    }
  }
  if (shared_ && !shared_->fits(units_, states_))
    return fail(invalid_argument("the shared arrays are those of other parameters or states"));
  const auto shared_memory = static_cast<std::uint32_t>(spec.units.size());
  if (shared_) spec.units.push_back({shared_->key(), shared_->memory().size()});
  for (const StateSpec& s : states_) {
    if (s.unit >= units_.size() || s.parameter >= units_[s.unit]->layout().placed().size())
      return fail(invalid_argument(fmt::format("the state {} belongs to no parameter", s.name)));
    const Piece one{0, 1, 1, 1};
    StepRecord::ArraySpec array{s.name, s.unit, s.parameter, s.dtype, s.name == "step" ? one : piece(s.unit, s.parameter), {}, {}};
    if (const auto whole = shared_ ? shared_->find(s) : std::nullopt) {
      array.in_arena = *whole + array.piece.begin * dtype_bytes(s.dtype);
      array.arena = shared_memory;
    }
    spec.arrays.push_back(std::move(array));
  }
  return spec;
}

Result<StepRecord::Spec> ProtectedShard::replica_spec(int rank) const {
  SHOAL_TRY(StepRecord::Spec spec, spec_of(rank, words().finished));
  spec.units.clear();
  for (auto& a : spec.arrays) {
    a.in_arena.reset();
    a.arena.reset();
  }
  return spec;
}

Result<std::unique_ptr<ProtectedShard>> ProtectedShard::make(Units units, const std::vector<StateSpec>& states, std::uint64_t step,
                                                             const std::string& name, std::shared_ptr<SharedArrays> shared,
                                                             const OpenMemory& open) {
  if (units.empty()) return fail(invalid_argument("a model without units cannot be protected"));
  std::unique_ptr<ProtectedShard> out(new ProtectedShard(std::move(units), states, name));
  out->shared_ = std::move(shared);
  SHOAL_TRY(const StepRecord::Spec spec, out->spec_of(out->units_.front()->rank(), step));
  out->first_state_ = spec.arrays.size() - states.size();
  for (const auto& unit : out->units_) out->arenas_.push_back(unit->arena());
  if (out->shared_) out->arenas_.push_back(out->shared_->memory());
  SHOAL_TRY(const std::size_t bytes, StepRecord::bytes_for(spec));
  SHOAL_TRY(const Fd memory, open(out->key(), bytes));
  SHOAL_TRY(out->memory_, runtime::map(memory, bytes, runtime::Access::kReadWrite));
  out->memory_.populate();
  out->update_.emplace(StepRecord::make(out->memory_.span(), spec), out->arenas_);
  return out;
}

std::string ProtectedShard::key_of(int rank) const { return fmt::format("{}/record-{}", name_, rank); }

std::string ProtectedShard::replica_key_of(int rank) const { return fmt::format("{}/replica-{}", name_, rank); }

std::span<std::byte> ProtectedShard::state(std::size_t index) const {
  const StepRecord& record = update_->step_record();
  const auto& array = record.arrays()[first_state_ + index];
  return {record.at(array.place, arenas_), array.piece.numel() * dtype_bytes(array.dtype)};
}

}  // namespace shoal::fsdp
