#include "fsdp/protect/replica.h"

#include <fmt/format.h>

#include <cstring>

#include "fsdp/link/hash.h"

namespace shoal::fsdp {

namespace {

using Item = StepRecord::Item;
using Place = StepRecord::Place;

constexpr std::string_view kMaster = "master_param";  // an optimizer's copy of the rows

std::size_t bytes_of(const StepRecord::Array& a) { return a.piece.numel() * dtype_bytes(a.dtype); }

bool is(const StepRecord::Array& a, std::string_view name) { return a.name == name; }

std::uint64_t hash_of_rows(const StepRecord& record, const Memories& arenas) {
  std::uint64_t hash = 1;
  for (const auto& a : record.arrays()) {
    if ((is(a, "param") || is(a, kMaster)) && bytes_of(a) > 0) hash = hash_of({record.at(a.place, arenas), bytes_of(a)}, hash);
  }
  return hash;
}

Error unfit(std::string_view what) { return data_loss(fmt::format("a message for a replica of a step record does not fit it: {}", what)); }

}  // namespace

// ---- the owner's side ------------------------------------------------------------------------------------------------------------------

ReplicaSource::ReplicaSource(StepRecord record, Memories arenas) : record_(record), arenas_(std::move(arenas)) {
  std::uint32_t number = 0;
  for (const auto& a : record_.arrays()) {
    ++number;
    if (bytes_of(a) > 0) numbers_.emplace(std::pair(a.place.memory, a.place.offset), number);
  }
}

Result<Place> ReplicaSource::numbered(const Place& place) const {
  if (place.memory == 0) return Place{};
  const auto found = numbers_.find({place.memory, place.offset});
  if (found == numbers_.end()) return fail(internal("a protected update uses an array that its record does not list"));
  return Place{found->second, 0};
}

std::uint64_t ReplicaSource::rows_hash() const { return hash_of_rows(record_, arenas_); }

ReplicaSource::Outgoing ReplicaSource::make(ReplicaHeader header, const std::vector<std::uint32_t>& arrays) const {
  header.num_items = static_cast<std::uint32_t>(items_.size());
  header.num_arrays = static_cast<std::uint32_t>(arrays.size());
  Outgoing out;
  out.header.resize(replica_header_bytes(arrays.size()));
  std::memcpy(out.header.data(), &header, sizeof header);
  if (!arrays.empty()) std::memcpy(out.header.data() + sizeof header, arrays.data(), arrays.size() * sizeof(std::uint32_t));
  out.pieces.push_back({items_.size() * sizeof(Item), reinterpret_cast<const std::byte*>(items_.data())});
  for (const std::uint32_t i : arrays) {
    const auto& a = record_.arrays()[i];
    out.pieces.push_back({bytes_of(a), record_.at(a.place, arenas_)});
  }
  out.bytes = out.header.size();
  for (const auto& piece : out.pieces) out.bytes += piece.bytes;
  return out;
}

ReplicaSource::Outgoing ReplicaSource::contents(std::uint64_t number, std::uint64_t step) {
  items_.clear();
  std::vector<std::uint32_t> arrays;
  for (std::uint32_t i = 0; i < record_.arrays().size(); ++i) {
    if (!StepRecord::of_step(record_.arrays()[i].name) && bytes_of(record_.arrays()[i]) > 0) arrays.push_back(i);
  }
  return make({ReplicaHeader::Kind::kContents, 0, 0, 0, number, step}, arrays);
}

Result<ReplicaSource::Outgoing> ReplicaSource::step(std::uint64_t number, std::uint64_t step, bool with_contents) {
  items_.assign(record_.items().begin(), record_.items().end());
  std::vector<bool> used(record_.arrays().size());
  for (Item& item : items_) {
    for (Place& place : item.at) {
      SHOAL_TRY(place, numbered(place));
      if (place.memory != 0) used[place.memory - 1] = true;
    }
    SHOAL_TRY(item.counter, numbered(item.counter));
  }
  std::vector<std::uint32_t> arrays;
  for (std::uint32_t i = 0; i < record_.arrays().size(); ++i) {
    const auto& a = record_.arrays()[i];
    if (StepRecord::of_step(a.name) ? used[i] : with_contents && bytes_of(a) > 0) arrays.push_back(i);
  }
  return make({ReplicaHeader::Kind::kStep, 0, 0, 0, number, step}, arrays);
}

// ---- the buddy's side ------------------------------------------------------------------------------------------------------------------

Result<std::vector<std::span<std::byte>>> Replica::expect(std::span<const std::byte> header) {
  if (header.size() < sizeof header_) return fail(unfit("its header is cut off"));
  std::memcpy(&header_, header.data(), sizeof header_);
  const auto& h = record_.header();
  const std::span<StepRecord::Array> arrays = record_.arrays();
  const bool contents = header_.kind == ReplicaHeader::Kind::kContents;
  if (header.size() != replica_header_bytes(header_.num_arrays) || header_.num_items > h.max_items) return fail(unfit("its sizes"));
  if (!contents && header_.kind != ReplicaHeader::Kind::kStep) return fail(unfit("its kind"));
  if (header_.kind == ReplicaHeader::Kind::kStep && (header_.step != h.finished + 1 || h.recorded != h.finished))
    return fail(unfit(fmt::format("step {} after step {}", header_.step, h.finished.load())));
  items_.resize(header_.num_items);
  std::vector<std::span<std::byte>> out{std::as_writable_bytes(std::span(items_))};
  std::vector<bool> given(arrays.size());
  bool any = contents;
  for (std::size_t i = 0; i < header_.num_arrays; ++i) {
    std::uint32_t number = 0;
    std::memcpy(&number, header.data() + replica_header_bytes(i), sizeof number);
    if (number >= arrays.size() || given[number]) return fail(unfit("an array"));
    given[number] = true;
    any |= !StepRecord::of_step(arrays[number].name);
    out.emplace_back(record_.at(arrays[number].place, {}), bytes_of(arrays[number]));
  }
  for (std::size_t i = 0; any && i < arrays.size(); ++i) {
    if (!given[i] && !StepRecord::of_step(arrays[i].name) && bytes_of(arrays[i]) > 0) return fail(unfit("it has not all rows and states"));
  }
  if (!any && !complete_) return fail(unfit("a step before any rows"));
  if (any) {
    complete_ = false;
    record_.set_usable(false);  // until all rows and states have arrived
  }
  return out;
}

Result<std::byte*> Replica::array(const Place& place, std::uint64_t numel, DType dtype) const {
  const std::span<StepRecord::Array> arrays = record_.arrays();
  if (place.memory == 0) return nullptr;
  if (place.memory > arrays.size()) return fail(unfit("an item"));
  const auto& a = arrays[place.memory - 1];
  if (a.piece.numel() != numel || a.dtype != dtype) return fail(unfit("an item's size"));
  return record_.at(a.place, {});
}

Result<ReplicaAnswer> Replica::take() {
  auto& h = record_.header();
  if (header_.kind == ReplicaHeader::Kind::kContents) {
    h.recorded = h.begun = h.finished = header_.step;
    complete_ = true;
    record_.set_usable(true);
    return ready();
  }
  ProtectedUpdate update(record_, {});
  SHOAL_TRY([[maybe_unused]] const bool begins, update.begin(header_.step));
  for (const Item& item : items_) {
    Shard shard{{}, item.numel};
    for (std::size_t i = 0; i < kMaxArrays; ++i) {
      SHOAL_TRY(shard.at[i], array(item.at[i], item.numel, item.dtypes[i]));
    }
    SHOAL_TRY(const std::byte* const counter, array(item.counter, 1, DType::kFloat32));
    SHOAL_OK(update.add(item, shard, reinterpret_cast<const float*>(counter)));
  }
  complete_ = true;
  record_.set_usable(true);
  update.record();
  return ReplicaAnswer{ReplicaAnswer::Kind::kRecorded, 0, header_.number, header_.step, 0};
}

bool Replica::due(std::uint64_t committed) const {
  const auto& h = record_.header();
  return h.recorded == committed && h.finished != committed;
}

ReplicaAnswer Replica::run(int num_threads) {
  ProtectedUpdate(record_, {}).run(num_threads);
  return ready();
}

ReplicaAnswer Replica::ready() const {
  return {ReplicaAnswer::Kind::kReady, 0, header_.number, record_.header().finished, hash_of_rows(record_, {})};
}

}  // namespace shoal::fsdp
