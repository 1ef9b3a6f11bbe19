#include "fsdp/shard/exchange.h"

#include <cstring>

#include <fmt/format.h>

namespace shoal::fsdp {

namespace {

constexpr std::size_t kAlignment = 64;

// pack copies a piece's runs to adjacent memory, unpack copies them back. Both return the number of bytes.
std::size_t pack(const Piece& piece, std::size_t element, const std::byte* whole, std::byte* out) {
  for (std::size_t k = 0; k < piece.runs; ++k) {
    std::memcpy(out + k * piece.length * element, whole + (piece.begin + k * piece.stride) * element, piece.length * element);
  }
  return piece.numel() * element;
}
std::size_t unpack(const Piece& piece, std::size_t element, const std::byte* in, std::byte* whole) {
  for (std::size_t k = 0; k < piece.runs; ++k) {
    std::memcpy(whole + (piece.begin + k * piece.stride) * element, in + k * piece.length * element, piece.length * element);
  }
  return piece.numel() * element;
}

std::vector<std::size_t> begins_of(const std::vector<std::size_t>& counts) {
  std::vector<std::size_t> out;
  std::size_t at = 0;
  for (const auto c : counts) {
    out.push_back(at);
    at += c;
  }
  out.push_back(at);
  return out;
}

// The begin of a message with a unit's gradients. Flags of the present parameters and the gradients' bytes follow.
struct Head {
  std::uint32_t unit, everywhere;
  double weight;
};

std::size_t head_bytes(const Layout& layout) { return (sizeof(Head) + layout.placed().size() + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

Exchange::Exchange(std::shared_ptr<runtime::Communicator> communicator, Control& control, int rank, Grid grid)
    : communicator_(std::move(communicator)), control_(control), rank_(rank), grid_(grid) {}

void Exchange::follow_gate() {
  const auto& own = control_.rank(rank_);
  for (int r = 0; r < grid_.world_size; ++r) {
    control_.rank(r).entered.store(own.entered.load());
    control_.rank(r).done.store(own.done.load());
  }
}

void Exchange::follow_reducer() {
  const auto published = control_.rank(rank_).published.load();
  for (int r = 0; r < grid_.world_size; ++r) {
    if (r == rank_) continue;
    control_.rank(r).published.store(published);
    control_.rank(r).consumed.store(published);
  }
}

runtime::Call Exchange::call(const char* op, const ShardedUnit& unit, std::uint32_t step) const {
  runtime::Call out;
  out.label = fmt::format("{}({})", op, unit.name().empty() ? "root" : unit.name());
  out.step = step;
  return out;
}

Result<void> Exchange::compare(std::uint64_t fingerprint) {
  if (compared_) return {};
  const auto world = static_cast<std::size_t>(grid_.world_size);
  std::vector<std::uint64_t> all(world);
  runtime::Call call;
  call.label = "the models' names, shapes and dtypes";
  SHOAL_OK(communicator_
               ->all_gather(std::as_bytes(std::span(&fingerprint, 1)), std::as_writable_bytes(std::span(all)),
                            std::vector<std::size_t>(world, sizeof fingerprint), DType::kUInt64, std::move(call))
               ->wait());
  for (int r = 0; r < grid_.world_size; ++r) control_.rank(r).fingerprint.store(all[static_cast<std::size_t>(r)]);
  compared_ = true;
  return {};
}

Result<void> Exchange::gather(ShardedUnit& unit, std::size_t unit_index, std::uint64_t fingerprint, std::uint32_t step) {
  SHOAL_OK(compare(fingerprint));
  // Units of different models are not gathered: after this the caller reports the difference (Leases::check_models).
  for (int r = 0; r < grid_.world_size; ++r) {
    if (control_.rank(r).fingerprint.load() != fingerprint) return {};
  }
  const auto& placed = unit.layout().placed();
  const auto world = static_cast<std::size_t>(grid_.world_size);
  const auto bytes_of = [&](int rank) {
    std::size_t out = 0;
    for (const auto& p : placed) {
      if (p.parameter.external || grid_.replica_of(rank) != grid_.replica_of(rank_)) continue;
      out += piece_of(p, grid_.shards(), grid_.shard_of(rank)).numel() * dtype_bytes(p.compute_dtype());
    }
    return out;
  };
  std::vector<std::size_t> receives(world), sends(world);
  for (int r = 0; r < grid_.world_size; ++r) {
    if (grid_.replica_of(r) == grid_.replica_of(rank_)) receives[static_cast<std::size_t>(r)] = kAlignment + bytes_of(r);
  }
  const auto begins = begins_of(receives);
  std::vector<std::byte> mine(receives[static_cast<std::size_t>(rank_)]), all(begins.back());
  const std::uint64_t number = unit_index;  // sent along, to detect ranks that gather different units of one size
  std::memcpy(mine.data(), &number, sizeof number);
  std::size_t at = kAlignment;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const auto& p = placed[i];
    if (p.parameter.external) continue;
    at +=
        pack(piece_of(p, grid_.shards(), grid_.shard_of(rank_)), dtype_bytes(p.compute_dtype()), unit.whole_to_write(i), mine.data() + at);
  }
  if (grid_.replicas == 1) {
    SHOAL_OK(communicator_->all_gather(mine, all, receives, DType::kUInt8, call("unshard", unit, step))->wait());
  } else {  // only ranks of this replica get data
    std::vector<std::byte> copies;
    for (int r = 0; r < grid_.world_size; ++r) {
      if (grid_.replica_of(r) != grid_.replica_of(rank_)) continue;
      sends[static_cast<std::size_t>(r)] = mine.size();
      copies.insert(copies.end(), mine.begin(), mine.end());
    }
    SHOAL_OK(communicator_->all_to_all(copies, all, sends, receives, DType::kUInt8, call("unshard", unit, step))->wait());
  }
  for (int r = 0; r < grid_.world_size; ++r) {
    if (r == rank_ || receives[static_cast<std::size_t>(r)] == 0) continue;
    at = begins[static_cast<std::size_t>(r)];
    std::uint64_t theirs;
    std::memcpy(&theirs, all.data() + at, sizeof theirs);
    if (theirs != number) {
      return fail(invalid_argument(fmt::format("the ranks' passes differ: rank {} unshards unit {} where rank {} unshards unit {}", rank_,
                                               number, r, theirs))
                      .with_reason("Diverged")
                      .with_hint("ranks that share no memory must run the same modules in the same order"));
    }
    at += kAlignment;
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const auto& p = placed[i];
      if (p.parameter.external) continue;
      at += unpack(piece_of(p, grid_.shards(), grid_.shard_of(r)), dtype_bytes(p.compute_dtype()), all.data() + at, unit.whole_to_write(i));
    }
  }
  return {};
}

Result<void> Exchange::gradients(const ShardedUnit& unit, const Reducer& reducer, Reducer::How how, std::uint32_t step) {
  if (grid_.world_size == 1) return {};
  const Layout& layout = unit.layout();
  const auto world = static_cast<std::size_t>(grid_.world_size);
  const std::uint64_t sequence = reducer.last_published();
  const std::size_t head = head_bytes(layout);
  // True when rank `to` sums the gradients of `from`.
  const auto sums = [&](int from, int to) { return how.everywhere || grid_.replica_of(from) == grid_.replica_of(to); };
  const auto bytes_of = [&](int from, int to) {
    std::size_t out = head;
    if (!sums(from, to)) return out;
    for (const auto& p : layout.placed()) out += piece_of(p, grid_.shards(), grid_.shard_of(to)).numel() * dtype_bytes(p.reduce_dtype());
    return out;
  };
  std::vector<std::size_t> sends(world), receives(world);
  for (int r = 0; r < grid_.world_size; ++r) {
    sends[static_cast<std::size_t>(r)] = r == rank_ ? 0 : bytes_of(rank_, r);
    receives[static_cast<std::size_t>(r)] = r == rank_ ? 0 : bytes_of(r, rank_);
  }
  const auto send_begins = begins_of(sends), receive_begins = begins_of(receives);
  std::vector<std::byte> out(send_begins.back()), in(receive_begins.back());

  const auto& own = reducer.words(rank_, sequence);
  for (int r = 0; r < grid_.world_size; ++r) {
    if (r == rank_) continue;
    std::byte* at = out.data() + send_begins[static_cast<std::size_t>(r)];
    const Head said = {own.unit.load(), own.everywhere.load(), own.weight.load()};
    std::memcpy(at, &said, sizeof said);
    std::memcpy(at + sizeof said, own.present, layout.placed().size());
    at += head;
    if (!sums(rank_, r)) continue;
    for (std::size_t i = 0; i < layout.placed().size(); ++i) {
      const auto& p = layout.placed()[i];
      const Piece piece = piece_of(p, grid_.shards(), grid_.shard_of(r));
      const std::size_t element = dtype_bytes(p.reduce_dtype());
      if (own.present[i] != 0) pack(piece, element, reducer.slot(rank_, sequence) + p.slot_offset_bytes, at);
      at += piece.numel() * element;
    }
  }
  SHOAL_OK(communicator_->all_to_all(out, in, sends, receives, DType::kUInt8, call("reduce_scatter", unit, step))->wait());
  for (int r = 0; r < grid_.world_size; ++r) {
    if (r == rank_) continue;
    const std::byte* at = in.data() + receive_begins[static_cast<std::size_t>(r)];
    auto& theirs = reducer.words(r, sequence);
    Head said;
    std::memcpy(&said, at, sizeof said);
    theirs.unit.store(said.unit);
    theirs.everywhere.store(said.everywhere);
    theirs.weight.store(said.weight);
    std::memcpy(theirs.present, at + sizeof said, layout.placed().size());
    at += head;
    if (!sums(r, rank_)) continue;
    for (const auto& p : layout.placed()) {
      at += unpack(piece_of(p, grid_.shards(), grid_.shard_of(rank_)), dtype_bytes(p.reduce_dtype()), at,
                   reducer.slot(r, sequence) + p.slot_offset_bytes);
    }
  }
  follow_reducer();
  return {};
}

}  // namespace shoal::fsdp
