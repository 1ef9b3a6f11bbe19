#include "fsdp/protect/step_record.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/process/process.h"

namespace shoal::fsdp {

namespace {

constexpr std::uint64_t kMagic = 0x3164726f63657253;  // "Srecord1"
constexpr std::size_t kUndoBytes = kCopy * StepRecord::kChunk * sizeof(double);

constexpr bool is_new(std::string_view name) { return name.starts_with("new:"); }

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Offsets of the record's parts, which lie in this order: header, lanes, undo records, units, arrays, items, contents.
struct Parts {
  std::size_t lanes, undo, units, arrays, items, contents;
  Parts(std::size_t num_units, std::size_t num_arrays, std::size_t max_items) {
    lanes = aligned(sizeof(StepRecord::Header));
    undo = lanes + StepRecord::kMaxLanes * sizeof(StepRecord::Lane);
    units = undo + StepRecord::kMaxLanes * kUndoBytes;
    arrays = units + aligned(num_units * sizeof(StepRecord::Unit));
    items = arrays + aligned(num_arrays * sizeof(StepRecord::Array));
    contents = items + aligned(max_items * sizeof(StepRecord::Item));
  }
};
Parts parts_of(const StepRecord::Header& h) { return {h.num_units, h.num_arrays, h.max_items}; }

std::size_t bytes_of(const StepRecord::ArraySpec& a) { return a.piece.numel() * dtype_bytes(a.dtype); }

std::size_t num_items_for(const StepRecord::Spec& spec) {
  return static_cast<std::size_t>(std::ranges::count_if(spec.arrays, [](const auto& a) { return a.name == "param" || is_new(a.name); }));
}

bool inside(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) { return offset <= size && bytes <= size - offset; }

}  // namespace

Result<std::size_t> StepRecord::bytes_for(const Spec& spec) {
  std::size_t out = Parts(spec.units.size(), spec.arrays.size(), num_items_for(spec)).contents;
  for (const auto& u : spec.units) {
    if (u.key.size() >= sizeof(Unit::key)) return fail(invalid_argument("the name of a mesh is too long for a step record: " + u.key));
  }
  for (const auto& a : spec.arrays) {
    if (a.name.size() >= sizeof(Array::name)) return fail(invalid_argument("the name of a state is too long: " + a.name));
    if (!a.in_arena) out += aligned(bytes_of(a));
  }
  return out;
}

StepRecord StepRecord::make(std::span<std::byte> memory, const Spec& spec) {
  StepRecord out(memory);
  Header& h = out.header();
  h.bytes = memory.size();
  h.rank = static_cast<std::uint32_t>(spec.rank);
  h.world_size = static_cast<std::uint32_t>(spec.grid.world_size);
  h.replicas = static_cast<std::uint32_t>(spec.grid.replicas);
  h.num_units = static_cast<std::uint32_t>(spec.units.size());
  h.num_arrays = static_cast<std::uint32_t>(spec.arrays.size());
  h.max_items = static_cast<std::uint32_t>(num_items_for(spec));
  h.recorded = h.begun = h.finished = spec.step;
  for (std::size_t i = 0; i < spec.units.size(); ++i) {
    Unit& u = out.units()[i];
    std::memcpy(u.key, spec.units[i].key.data(), spec.units[i].key.size());
    u.bytes = spec.units[i].bytes;
  }
  std::size_t next = parts_of(h).contents;
  for (std::size_t i = 0; i < spec.arrays.size(); ++i) {
    const ArraySpec& from = spec.arrays[i];
    Array& a = out.arrays()[i];
    std::memcpy(a.name, from.name.data(), from.name.size());
    a.unit = from.unit;
    a.parameter = from.parameter;
    a.dtype = from.dtype;
    a.piece = from.piece;
    a.place = from.in_arena ? Place{2 + from.arena.value_or(from.unit), *from.in_arena} : Place{1, next};
    if (!from.in_arena) next += aligned(bytes_of(from));
  }
  h.pid = getpid();
  h.start_time = runtime::start_time(h.pid);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // a killed process leaves a complete record, or none
  h.magic = kMagic;
  return out;
}

Result<StepRecord> StepRecord::open(std::span<std::byte> memory) {
  const auto bad = [](const std::string& what) { return fail(data_loss("this memory holds no step record: " + what)); };
  if (memory.size() < sizeof(Header)) return bad(fmt::format("it has {} bytes", memory.size()));
  StepRecord out(memory);
  const Header& h = out.header();
  if (h.magic != kMagic) return bad("its process ended before the record was complete");
  if (h.bytes != memory.size() || !inside(parts_of(h).contents, 0, memory.size())) return bad("its sizes do not fit");
  for (const auto& a : out.arrays()) {
    if (a.name[sizeof a.name - 1] != 0 || a.place.memory == 0) return bad("an array is damaged");
    if (!out.fits(a.place, a.piece.numel(), a.dtype)) return bad(fmt::format("{} lies outside", a.name));
  }
  for (const auto& u : out.units()) {
    if (u.key[sizeof u.key - 1] != 0) return bad("a unit is damaged");
  }
  return out;
}

bool StepRecord::fits(const Place& p, std::uint64_t numel, DType dtype) const {
  if (p.memory == 0) return true;
  if (static_cast<int>(dtype) >= kNumDTypes || numel > header().bytes + (std::uint64_t{1} << 48)) return false;
  const std::uint64_t bytes = numel * dtype_bytes(dtype);
  if (p.memory == 1) return inside(p.offset, bytes, memory_.size());
  return p.memory - 2 < header().num_units && inside(p.offset, bytes, units()[p.memory - 2].bytes);
}

Result<void> StepRecord::check_items() const {
  const auto bad = [] { return fail(data_loss("the recorded update of a rank is damaged")); };
  const Header& h = header();
  if (h.num_items > h.max_items || h.num_lanes > kMaxLanes) return bad();
  std::uint64_t total = 0;
  for (const auto& item : items()) {
    if (item.first != total || !fits(item.counter, 1, DType::kFloat32)) return bad();
    for (std::size_t i = 0; i < kMaxArrays; ++i) {
      if (!fits(item.at[i], item.numel, item.dtypes[i])) return bad();
    }
    total += item.numel;
  }
  for (std::size_t i = 0; h.begun == h.recorded && i < h.num_lanes; ++i) {
    const Lane& l = lane(i);
    if (l.begin > l.end || l.end > total || l.progress / 2 < l.begin || l.progress / 2 > l.end) return bad();
  }
  return {};
}

std::span<StepRecord::Unit> StepRecord::units() const {
  return {reinterpret_cast<Unit*>(memory_.data() + parts_of(header()).units), header().num_units};
}

std::span<StepRecord::Array> StepRecord::arrays() const {
  return {reinterpret_cast<Array*>(memory_.data() + parts_of(header()).arrays), header().num_arrays};
}

bool StepRecord::of_step(std::string_view name) { return name == "grad" || is_new(name); }

std::span<StepRecord::Item> StepRecord::items() const { return {&item(0), header().num_items}; }

StepRecord::Item& StepRecord::item(std::size_t index) const {
  return reinterpret_cast<Item*>(memory_.data() + parts_of(header()).items)[index];
}

StepRecord::Lane& StepRecord::lane(std::size_t index) const {
  return reinterpret_cast<Lane*>(memory_.data() + parts_of(header()).lanes)[index];
}

std::byte* StepRecord::undo(std::size_t lane) const { return memory_.data() + parts_of(header()).undo + lane * kUndoBytes; }

std::byte* StepRecord::at(const Place& place, std::span<const std::span<std::byte>> arenas) const {
  if (place.memory == 0) return nullptr;
  return (place.memory == 1 ? memory_ : arenas[place.memory - 2]).data() + place.offset;
}

Result<StepRecord::Place> StepRecord::place_of(const std::byte* address, std::size_t bytes,
                                               std::span<const std::span<std::byte>> arenas) const {
  if (address == nullptr) return Place{};
  const auto in = [&](std::span<std::byte> memory) {
    return address >= memory.data() && inside(static_cast<std::uint64_t>(address - memory.data()), bytes, memory.size());
  };
  if (in(memory_)) return Place{1, static_cast<std::uint64_t>(address - memory_.data())};
  for (std::size_t u = 0; u < arenas.size(); ++u) {
    if (in(arenas[u])) return Place{static_cast<std::uint32_t>(2 + u), static_cast<std::uint64_t>(address - arenas[u].data())};
  }
  return fail(internal("an array of a protected update lies outside of the node's memory"));
}

}  // namespace shoal::fsdp
