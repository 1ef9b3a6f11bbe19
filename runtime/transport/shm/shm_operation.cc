#include "runtime/transport/shm/shm_operation.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/shm/wide_copy.h"
#include "runtime/transport/overlap.h"
#include "runtime/transport/reduction.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kAlignment = 64;
// An all_reduce has one phase up to this size, or with two ranks: every rank reduces all inputs itself.
constexpr std::size_t kOnePhaseBytes = 8 << 10;
// An all_gather whose largest part has a size in this range reads the others' inputs directly (measured: smaller ones cost more system
// calls than copies, larger ones exceed the caches, where the kernel copies slower).
constexpr std::size_t kDirectFrom = 8 << 10, kDirectTo = 2 << 20;
// An output of an all_gather or broadcast from this size on bypasses the caches, so its memory is not read before it is written (measured
// with 64 MiB: a quarter faster; with 16 MiB: slower).
constexpr std::size_t kStreamFrom = 32 << 20;

std::uint64_t pieces_of(std::size_t bytes, std::size_t piece) { return std::max<std::uint64_t>(1, (bytes + piece - 1) / piece); }

// The size of the piece of `bytes` bytes that begins at `at`: the rest, but at most `limit`.
std::size_t piece_at(std::size_t bytes, std::size_t at, std::size_t limit) { return at >= bytes ? 0 : std::min(limit, bytes - at); }

void put_bytes(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 0 && out != in) std::memmove(out, in, bytes);
}

// Copies a piece of an output that has `whole` bytes.
void put_output(std::byte* out, const std::byte* in, std::size_t bytes, std::size_t whole) {
  if (whole >= kStreamFrom && out != in) return copy_past_caches({out, bytes}, {in, bytes});
  put_bytes(out, in, bytes);
}

}  // namespace

// ---- collectives -------------------------------------------------------------------------------------------------------------------

ShmCollective::ShmCollective(ShmMemory memory, Ledger& ledger, DirectReads& direct_reads, int rank, std::uint64_t sequence,
                             CollectiveSpec spec, Call call, TimePoint began)
    : Operation(std::move(call), began),
      memory_(memory),
      ledger_(ledger),
      direct_reads_(direct_reads),
      rank_(rank),
      world_size_(memory.shape().world_size),
      spec_(std::move(spec)),
      entry_(entry_of(sequence, spec_, this->call())),
      part_bytes_(memory.shape().chunk_bytes / static_cast<std::size_t>(world_size_) / kAlignment * kAlignment),
      round_bytes_(memory.shape().chunk_bytes / kAlignment * kAlignment),
      begins_(begins_of(spec_.counts)),
      receive_begins_(begins_of(spec_.receive)) {
  if (spec_.kind == Collective::kAllReduce && two_phases()) {
    // Cuts small inputs into one part for each rank, too.
    const auto world = static_cast<std::size_t>(world_size_);
    const std::size_t even = (spec_.input.size() + world - 1) / world;
    part_bytes_ = std::min(part_bytes_, (even + kAlignment - 1) / kAlignment * kAlignment);
    round_bytes_ = part_bytes_ * world;
  }
}

bool ShmCollective::two_phases() const { return spec_.input.size() > kOnePhaseBytes && world_size_ > 2; }

void ShmCollective::start(std::uint64_t first) {
  first_ = first;
  set_input_apart(spec_, rank_, input_copy_);
  direct_reads_.try_once();
  if (spec_.kind == Collective::kAllToAll) {
    auto& sends = memory_.rank(rank_).sends[entry_.sequence % Ledger::kEntries];
    for (std::size_t r = 0; r < spec_.counts.size(); ++r) sends[r].store(spec_.counts[r], std::memory_order_relaxed);
  } else if (!may_read_directly()) {
    rounds_ = own_rounds();
  }
  ledger_.enter(entry_);
}

bool ShmCollective::may_read_directly() const {
  if (spec_.kind != Collective::kAllGather || world_size_ == 1) return false;
  const std::size_t largest = *std::max_element(spec_.counts.begin(), spec_.counts.end());
  return kDirectFrom <= largest && largest <= kDirectTo;
}

std::uint64_t ShmCollective::own_rounds() const {
  const std::size_t largest = spec_.counts.empty() ? 0 : *std::max_element(spec_.counts.begin(), spec_.counts.end());
  switch (spec_.kind) {
    case Collective::kAllGather:
      return pieces_of(largest, round_bytes_);
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return pieces_of(largest, part_bytes_);
    case Collective::kAllReduce:
    case Collective::kBroadcast:
      return pieces_of(spec_.output.size(), round_bytes_);
    default:
      return 1;
  }
}

std::size_t ShmCollective::sent_to_me(int rank) const {
  return memory_.rank(rank).sends[entry_.sequence % Ledger::kEntries][rank_].load(std::memory_order_relaxed);
}

// Computes the number of rounds of an all_to_all from its largest part. To be called once all ranks have entered.
void ShmCollective::count_rounds() {
  std::uint64_t rounds = 1;
  for (int from = 0; from < world_size_; ++from) {
    for (int to = 0; to < world_size_; ++to) {
      const auto& sends = memory_.rank(from).sends[entry_.sequence % Ledger::kEntries];
      rounds = std::max(rounds, pieces_of(sends[to].load(std::memory_order_relaxed), part_bytes_));
    }
  }
  rounds_ = rounds;
}

int ShmCollective::behind(Words words, std::uint64_t needed) const {
  for (int i = 1; i <= world_size_; ++i) {
    const int r = (rank_ + i) % world_size_;
    const auto& w = memory_.rank(r);
    const auto& word = words == Words::kPublished ? w.published : words == Words::kConsumed ? w.consumed : w.reduced;
    if (word.load(std::memory_order_acquire) < needed) return r;
  }
  return -1;
}

bool ShmCollective::has_put(int rank, std::uint64_t round) const {
  return memory_.rank(rank).published.load(std::memory_order_acquire) > round;
}

int ShmCollective::missing_to_put() const {
  const std::uint64_t round = first_ + put_;
  return round < ShmMemory::kBuffers ? -1 : behind(Words::kConsumed, round + 1 - ShmMemory::kBuffers);
}

int ShmCollective::missing_to_reduce() const { return behind(Words::kPublished, first_ + reduced_ + 1); }

int ShmCollective::missing_to_read() const {
  const std::uint64_t round = first_ + read_;
  if (spec_.kind == Collective::kBroadcast) return rank_ == spec_.root || has_put(spec_.root, round) ? -1 : spec_.root;
  if (spec_.kind == Collective::kAllReduce && two_phases()) return behind(Words::kReduced, round + 1);
  return behind(Words::kPublished, round + 1);
}

int ShmCollective::missing_to_release() const { return direct_ ? behind(Words::kConsumed, end()) : -1; }

int ShmCollective::missing() const {
  if (complete()) return -1;
  if (rounds_ == 0 && may_read_directly()) return direct_reads_.first_untried();
  if (rounds_ > 0 && read_ == rounds_) return missing_to_release();
  // A rank that has not entered the collective is reported before those that are slow.
  if (spec_.kind != Collective::kBroadcast) {
    if (const int r = behind(Words::kPublished, first_ + 1); r >= 0 && r != rank_) return r;
  }
  if (put_ < std::max(rounds_, std::uint64_t{1})) {
    if (const int r = missing_to_put(); r >= 0) return r;
  }
  return missing_to_read();
}

Result<void> ShmCollective::check_entries() {
  bool all = true;
  for (int r = 0; r < world_size_; ++r) {
    if (!has_put(r, first_)) {
      all = false;
      continue;
    }
    const auto theirs = ledger_.entry(r, entry_.sequence);
    if (theirs && agree(*theirs, entry_)) continue;
    const std::string there = theirs ? describe(*theirs) : "another round of " + ledger_.describe(r);
    return fail(
        invalid_argument(fmt::format("the ranks' collectives differ: rank {} is in {}, rank {} in {}", rank_, describe(entry_), r, there))
            .with_reason("Diverged")
            .with_hint("every rank must make the same calls, with the same sizes and dtypes, in the same order"));
  }
  if (all && spec_.kind == Collective::kAllToAll) {
    for (int r = 0; r < world_size_; ++r) {
      if (const std::size_t sent = sent_to_me(r), expected = spec_.receive[static_cast<std::size_t>(r)]; sent != expected) {
        return fail(invalid_argument(fmt::format("in {}, rank {} sends {} bytes to rank {}, which expects {}", describe(entry_), r, sent,
                                                 rank_, expected))
                        .with_reason("Diverged")
                        .with_hint("what a rank sends to another and what that one expects must be equal"));
      }
    }
  }
  checked_ = all;
  return {};
}

Result<bool> ShmCollective::advance() {
  bool moved = false;
  auto& own = memory_.rank(rank_);
  if (rounds_ == 0 && may_read_directly()) {
    const auto possible = direct_reads_.possible();
    if (!possible) return moved;
    direct_ = *possible;
    rounds_ = direct_ ? 1 : own_rounds();
  }
  while (put_ < (rounds_ > 0 ? rounds_ : own_rounds()) && missing_to_put() < 0) {
    put(put_);
    own.published.store(first_ + ++put_, std::memory_order_release);
    moved = true;
  }
  if (!checked_) SHOAL_OK(check_entries());
  if (rounds_ == 0) {
    if (!checked_) return moved;
    count_rounds();
    moved = true;
  }
  if (spec_.kind == Collective::kAllReduce && two_phases()) {
    while (reduced_ < put_ && missing_to_reduce() < 0) {
      if (!checked_) SHOAL_OK(check_entries());
      reduce_part(reduced_);
      own.reduced.store(first_ + ++reduced_, std::memory_order_release);
      moved = true;
    }
  }
  while (read_ < put_ && missing_to_read() < 0) {
    if (!checked_) SHOAL_OK(check_entries());  // checks ranks that have put a chunk since the last check
    if (direct_) {
      SHOAL_TRY(const bool there, read_directly());
      if (!there) break;
    } else {
      read(read_);
    }
    own.consumed.store(first_ + ++read_, std::memory_order_release);
    moved = true;
  }
  return moved;
}

void ShmCollective::put(std::uint64_t k) {
  if (direct_) {
    memory_.rank(rank_).inputs[entry_.sequence % Ledger::kEntries].store(reinterpret_cast<std::uintptr_t>(spec_.input.data()),
                                                                         std::memory_order_relaxed);
    return;
  }
  std::byte* const chunk = memory_.chunk(rank_, first_ + k);
  const std::size_t at = static_cast<std::size_t>(k) * round_bytes_, part_at = static_cast<std::size_t>(k) * part_bytes_;
  switch (spec_.kind) {
    case Collective::kBroadcast:
      if (rank_ != spec_.root) return;
      put_bytes(chunk, spec_.output.data() + at, piece_at(spec_.output.size(), at, round_bytes_));
      return;
    case Collective::kAllGather:
    case Collective::kAllReduce:
      put_bytes(chunk, spec_.input.data() + at, piece_at(spec_.input.size(), at, round_bytes_));
      return;
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      for (int r = 0; r < world_size_; ++r) {
        if (r == rank_) continue;  // this rank reads its own part from the input
        const auto i = static_cast<std::size_t>(r);
        put_bytes(chunk + i * part_bytes_, spec_.input.data() + begins_[i] + part_at, piece_at(spec_.counts[i], part_at, part_bytes_));
      }
      return;
    default:
      return;
  }
}

void ShmCollective::reduce_part(std::uint64_t k) {
  const std::size_t begin = static_cast<std::size_t>(rank_) * part_bytes_;
  const std::size_t bytes = piece_at(spec_.input.size(), static_cast<std::size_t>(k) * round_bytes_ + begin, part_bytes_);
  if (bytes == 0) return;
  std::vector<const std::byte*> sources;
  for (int r = 0; r < world_size_; ++r) sources.push_back(memory_.chunk(r, first_ + k) + begin);
  reduce(spec_.dtype, spec_.op, sources, memory_.chunk(rank_, first_ + k) + begin, bytes / dtype_bytes(spec_.dtype));
}

void ShmCollective::read(std::uint64_t k) {
  const std::uint64_t round = first_ + k;
  const std::size_t at = static_cast<std::size_t>(k) * round_bytes_, part_at = static_cast<std::size_t>(k) * part_bytes_;
  const auto self = static_cast<std::size_t>(rank_);
  switch (spec_.kind) {
    case Collective::kBroadcast:
      if (rank_ != spec_.root)
        put_output(spec_.output.data() + at, memory_.chunk(spec_.root, round), piece_at(spec_.output.size(), at, round_bytes_),
                   spec_.output.size());
      return;
    case Collective::kAllGather:
      for (int r = 0; r < world_size_; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const std::byte* const from = r == rank_ ? spec_.input.data() + at : memory_.chunk(r, round);
        put_output(spec_.output.data() + begins_[i] + at, from, piece_at(spec_.counts[i], at, round_bytes_), spec_.output.size());
      }
      return;
    case Collective::kAllReduce: {
      if (two_phases()) {
        for (int r = 0; r < world_size_; ++r) {
          const std::size_t begin = static_cast<std::size_t>(r) * part_bytes_;
          put_bytes(spec_.output.data() + at + begin, memory_.chunk(r, round) + begin,
                    piece_at(spec_.output.size(), at + begin, part_bytes_));
        }
        return;
      }
      std::vector<const std::byte*> sources;
      for (int r = 0; r < world_size_; ++r) sources.push_back(r == rank_ ? spec_.input.data() + at : memory_.chunk(r, round));
      const std::size_t bytes = piece_at(spec_.output.size(), at, round_bytes_);
      reduce(spec_.dtype, spec_.op, sources, spec_.output.data() + at, bytes / dtype_bytes(spec_.dtype));
      return;
    }
    case Collective::kReduceScatter: {
      const std::size_t bytes = piece_at(spec_.counts[self], part_at, part_bytes_);
      if (bytes == 0) return;
      std::vector<const std::byte*> sources;
      for (int r = 0; r < world_size_; ++r) {
        sources.push_back(r == rank_ ? spec_.input.data() + begins_[self] + part_at : memory_.chunk(r, round) + self * part_bytes_);
      }
      reduce(spec_.dtype, spec_.op, sources, spec_.output.data() + part_at, bytes / dtype_bytes(spec_.dtype));
      return;
    }
    case Collective::kAllToAll:
      for (int r = 0; r < world_size_; ++r) {
        const auto i = static_cast<std::size_t>(r);
        const std::byte* const from =
            r == rank_ ? spec_.input.data() + begins_[self] + part_at : memory_.chunk(r, round) + self * part_bytes_;
        put_bytes(spec_.output.data() + receive_begins_[i] + part_at, from, piece_at(spec_.receive[i], part_at, part_bytes_));
      }
      return;
    default:
      return;
  }
}

Result<bool> ShmCollective::read_directly() {
  for (int i = 0; i < world_size_; ++i) {
    const int r = (rank_ + i) % world_size_;  // so that not all ranks read the same one at once
    const auto n = static_cast<std::size_t>(r);
    const auto out = spec_.output.subspan(begins_[n], spec_.counts[n]);
    if (r == rank_) {
      put_bytes(out.data(), spec_.input.data(), out.size());
      continue;
    }
    const std::uint64_t from = memory_.rank(r).inputs[entry_.sequence % Ledger::kEntries].load(std::memory_order_relaxed);
    SHOAL_TRY(const bool there, direct_reads_.read(r, from, out));
    if (!there) return false;
  }
  return true;
}

// ---- messages ----------------------------------------------------------------------------------------------------------------------

ShmMessage::ShmMessage(ShmMemory memory, int rank, int from, int to, std::span<std::byte> data, DType dtype, std::uint32_t tag, Call call,
                       TimePoint began)
    : Operation(std::move(call), began),
      memory_(memory),
      rank_(rank),
      from_(from),
      to_(to),
      data_(data),
      dtype_(dtype),
      tag_(tag),
      pieces_(pieces_of(data.size(), memory.shape().channel_bytes)) {}

std::string ShmMessage::what() const {
  std::string out =
      fmt::format("{} (tag {}, {} bytes of {})", sends() ? fmt::format("send to rank {}", to_) : fmt::format("recv from rank {}", from_),
                  tag_, data_.size(), dtype_name(dtype_));
  if (!call().label.empty()) out += fmt::format(" '{}'", call().label);
  return out + fmt::format(", step {}", call().step);
}

Result<void> ShmMessage::check_head(const ShmMemory::Channel::Head& head) const {
  if (head.bytes == data_.size() && head.tag == tag_ && head.dtype == static_cast<std::uint64_t>(dtype_)) return {};
  const auto dtype = head.dtype < kNumDTypes ? static_cast<DType>(head.dtype) : DType::kUInt8;
  return fail(invalid_argument(fmt::format("rank {} is in {}, but rank {} sends {} bytes of {} with tag {}", rank_, what(), from_,
                                           head.bytes, dtype_name(dtype), head.tag))
                  .with_reason("Diverged")
                  .with_hint("messages between two ranks arrive in the order in which they were sent"));
}

Result<bool> ShmMessage::advance() {
  auto& channel = memory_.channel(from_, to_);
  const std::size_t limit = memory_.shape().channel_bytes;
  bool moved = false;
  while (next_ < pieces_) {
    const std::uint64_t sent = channel.sent.load(std::memory_order_acquire), received = channel.received.load(std::memory_order_acquire);
    const std::size_t at = static_cast<std::size_t>(next_) * limit, bytes = piece_at(data_.size(), at, limit);
    if (sends()) {
      if (sent - received >= ShmMemory::kBuffers) break;
      channel.heads[sent % ShmMemory::kBuffers] = {data_.size(), tag_, static_cast<std::uint64_t>(dtype_)};
      put_bytes(memory_.piece(from_, to_, sent), data_.data() + at, bytes);
      channel.sent.store(sent + 1, std::memory_order_release);
    } else {
      if (sent == received) break;
      SHOAL_OK(check_head(channel.heads[received % ShmMemory::kBuffers]));
      put_bytes(data_.data() + at, memory_.piece(from_, to_, received), bytes);
      channel.received.store(received + 1, std::memory_order_release);
    }
    ++next_;
    moved = true;
  }
  return moved;
}

}  // namespace shoal::runtime
