#include "fsdp/protect/adoption.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "fsdp/protect/protected_update.h"
#include "runtime/process/process.h"

namespace shoal::fsdp {

RecordWords words_of(const StepRecord& record) {
  const auto& h = record.header();
  return {h.recorded.load(), h.begun.load(), h.finished.load()};
}

std::uint64_t committed_step(std::span<const RecordWords> ranks, bool all) {
  std::uint64_t begun = 0, recorded = ranks.empty() ? 0 : ranks[0].recorded;
  for (const auto& r : ranks) {
    begun = std::max(begun, r.begun);
    recorded = std::min(recorded, r.recorded);
  }
  return all ? std::max(begun, recorded) : begun;
}

Result<AdoptedShard> AdoptedShard::open(const std::string& key, const FindMemory& find) {
  AdoptedShard out;
  const auto mapped = [&](const std::string& name) -> Result<runtime::Mapping> {
    SHOAL_TRY(const Fd memory, find(name));
    SHOAL_TRY(const std::size_t bytes, runtime::memory_bytes(memory));
    out.keys_.push_back(name);
    return runtime::map(memory, bytes, runtime::Access::kReadWrite);
  };
  SHOAL_TRY(out.record_memory_, mapped(key));
  SHOAL_TRY(out.record_, StepRecord::open(out.record_memory_.span()));
  for (const auto& unit : out.record_->units()) {
    SHOAL_TRY(runtime::Mapping arena, mapped(unit.key));
    if (arena.size() != unit.bytes)
      return fail(data_loss(fmt::format("the arena {} has {} bytes, not {}", unit.key, arena.size(), unit.bytes)));
    out.arenas_.push_back(arena.span());
    out.arena_memories_.push_back(std::move(arena));
  }
  return out;
}

Grid AdoptedShard::grid() const {
  const auto& h = record().header();
  return {static_cast<int>(h.world_size), static_cast<int>(h.replicas)};
}

RecordWords AdoptedShard::words() const { return words_of(record()); }

Result<void> AdoptedShard::settle(std::uint64_t committed, int num_threads) {
  const auto& h = record().header();
  if (h.pid != getpid() && !runtime::has_ended(h.pid, h.start_time)) {
    return fail(unavailable(fmt::format("rank {} cannot be adopted: its process {} has not ended", h.rank, h.pid))
                    .with_reason("StillAlive")
                    .with_hint("end the process first, and wait until the node reports its end"));
  }
  if (h.usable.load(std::memory_order_acquire) == 0)
    return fail(data_loss(fmt::format("rank {} ended while its states were loaded", h.rank)).with_hint("continue from a checkpoint"));
  const RecordWords now = words();
  const bool torn = now.begun > committed;
  if (now.finished == committed && !torn) return {};
  if (now.finished + 1 != committed || now.recorded != committed || torn) {
    return fail(data_loss(fmt::format("the record of rank {} is of step {} (recorded: {}, begun: {}), not of the committed step {}", h.rank,
                                      now.finished, now.recorded, now.begun, committed)));
  }
  SHOAL_OK(record().check_items());
  ProtectedUpdate(record(), arenas_).run(num_threads);
  return {};
}

std::vector<AdoptedShard::Array> AdoptedShard::arrays() const {
  std::vector<Array> out;
  for (const auto& a : record().arrays()) {
    if (StepRecord::of_step(a.name)) continue;
    out.push_back({a.name, a.unit, a.parameter, a.dtype, a.piece, record().at(a.place, arenas_)});
  }
  return out;
}

}  // namespace shoal::fsdp
