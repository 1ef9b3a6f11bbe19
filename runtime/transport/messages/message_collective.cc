#include <algorithm>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "runtime/transport/messages/message_operation.h"
#include "runtime/transport/overlap.h"
#include "runtime/transport/reduction.h"

namespace shoal::runtime {

namespace {

constexpr std::size_t kElements = 64;             // shares begin at a multiple of so many elements
constexpr std::size_t kCopiedAtOnce = 256 << 10;  // bytes of this rank's own part, between two looks at the network
constexpr std::size_t kChunksOfShare = 32;        // so that the pipeline's end takes a thirtieth of the time
constexpr std::size_t kMinChunk = 64 << 10;       // for smaller chunks, the fixed cost of a message would count
constexpr std::size_t kChunkUnit = 4096;

// The offset of each rank's share of `bytes`, and their end.
std::vector<std::size_t> shares_of(std::size_t bytes, std::size_t element, std::size_t world) {
  const std::size_t numel = bytes / element;
  const std::size_t even = ((numel + world - 1) / world + kElements - 1) / kElements * kElements;
  std::vector<std::size_t> out;
  for (std::size_t r = 0; r <= world; ++r) out.push_back(std::min(numel, r * even) * element);
  return out;
}

// The size of chunks, at most `limit`. Chunks are so small that a rank has few bytes left to pass on when the last ones arrive. Every rank
// computes the same size.
std::size_t chunk_of(const CollectiveSpec& spec, std::size_t world, std::size_t limit) {
  std::size_t total = 0;
  if (spec.kind == Collective::kAllReduce || spec.kind == Collective::kBroadcast) total = spec.output.size();
  if (spec.kind == Collective::kReduceScatter) total = std::accumulate(spec.counts.begin(), spec.counts.end(), total);
  if (total == 0) return limit;
  const std::size_t wanted = total / world / kChunksOfShare / kChunkUnit * kChunkUnit;
  return std::min(limit, std::max(wanted, kMinChunk));
}

void copy(std::byte* out, std::span<const std::byte> in) {
  if (!in.empty() && out != in.data()) std::memmove(out, in.data(), in.size());
}

}  // namespace

MessageCollective::MessageCollective(MessageGroup& group, std::uint64_t sequence, CollectiveSpec spec, Call call, TimePoint began)
    : MessageOperation(std::move(call), began),
      group_(group),
      rank_(group.rank()),
      world_size_(group.world_size()),
      spec_(std::move(spec)),
      chunk_(chunk_of(spec_, static_cast<std::size_t>(world_size_), group.chunk_bytes())),
      entry_(entry_of(sequence, spec_, this->call())),
      begins_(begins_of(spec_.counts)),
      receive_begins_(begins_of(spec_.receive)),
      share_begins_(shares_of(spec_.output.size(), dtype_bytes(spec_.dtype), static_cast<std::size_t>(world_size_))),
      peers_(static_cast<std::size_t>(world_size_)) {}

bool MessageCollective::is_small_reduction() const { return spec_.kind == Collective::kAllReduce && spec_.input.size() <= kInlineBytes; }

std::span<std::byte> MessageCollective::share(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return spec_.output.subspan(share_begins_[r], share_begins_[r + 1] - share_begins_[r]);
}

std::span<const std::byte> MessageCollective::data_to(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  switch (spec_.kind) {
    case Collective::kAllGather:
      return spec_.input;
    case Collective::kReduceScatter:
    case Collective::kAllToAll:
      return spec_.input.subspan(begins_[r], spec_.counts[r]);
    case Collective::kAllReduce:
      return is_small_reduction() ? spec_.input : spec_.input.subspan(share_begins_[r], share_begins_[r + 1] - share_begins_[r]);
    case Collective::kBroadcast:
      if (rank_ != spec_.root) return {};
      return spec_.output.size() <= kInlineBytes ? std::span<const std::byte>(spec_.output) : share(rank);
    default:
      return {};
  }
}

std::size_t MessageCollective::bytes_from(int rank) const {
  const auto r = static_cast<std::size_t>(rank), self = static_cast<std::size_t>(rank_);
  switch (spec_.kind) {
    case Collective::kAllGather:
      return spec_.counts[r];
    case Collective::kReduceScatter:
      return spec_.counts[self];
    case Collective::kAllToAll:
      return spec_.receive[r];
    case Collective::kAllReduce:
      return is_small_reduction() ? spec_.input.size() : share(rank_).size();
    case Collective::kBroadcast:
      if (rank != spec_.root) return 0;
      return spec_.output.size() <= kInlineBytes ? spec_.output.size() : share(rank_).size();
    default:
      return 0;
  }
}

void MessageCollective::start() {
  started_ = true;
  set_input_apart(spec_, rank_, input_copy_);
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    const auto data = data_to(r);
    Header header = Header::from_entry(entry_);
    header.sent = data.size();
    peer.out = encode(header, data.size() <= kInlineBytes ? data : data.first(0));
    peer.in.resize(sizeof(Header) + kInlineBytes);
    group_.send(r, Channel::kHeaders, peer.out, peer.sent);
    group_.receive(r, Channel::kHeaders, peer.in, peer.received);
  }
  plan();
}

void MessageCollective::plan() {
  const auto self = static_cast<std::size_t>(rank_);
  switch (spec_.kind) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
      own_part_ = data_to(rank_);
      own_part_into_ = spec_.output.data() + (spec_.kind == Collective::kAllGather ? begins_[self] : receive_begins_[self]);
      break;
    case Collective::kBroadcast:
      if (spec_.output.size() > kInlineBytes) plan_shares_of_broadcast();
      break;
    case Collective::kReduceScatter:
      reduced_into_ = spec_.output;
      own_input_ = data_to(rank_).data();
      break;
    case Collective::kAllReduce:
      reduced_into_ = is_small_reduction() ? spec_.output : share(rank_);
      own_input_ = data_to(rank_).data();
      break;
    default:
      break;
  }
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_ || data_to(r).size() <= kInlineBytes) continue;
    // The const_cast is safe: a stream that sends only reads.
    const auto data = data_to(r);
    streams_.emplace_back(ChunkStream::Way::kSend, r, Channel::kData, std::span(const_cast<std::byte*>(data.data()), data.size()),
                          data.size(), chunk_, ChunkStream::Gate::kOpen);
  }
  if (reduced_into_.data() != nullptr && !reduced_into_.empty()) {
    plan_reduction();
    return;
  }
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_ || bytes_from(r) <= kInlineBytes) continue;
    std::span<std::byte> into = share(rank_);
    if (spec_.kind == Collective::kAllGather) into = spec_.output.subspan(begins_[static_cast<std::size_t>(r)], bytes_from(r));
    if (spec_.kind == Collective::kAllToAll) into = spec_.output.subspan(receive_begins_[static_cast<std::size_t>(r)], bytes_from(r));
    if (spec_.kind == Collective::kAllReduce) continue;  // this rank's share is empty
    streams_.emplace_back(ChunkStream::Way::kReceive, r, Channel::kData, into, into.size(), chunk_, ChunkStream::Gate::kOpen);
  }
  if (spec_.kind == Collective::kAllReduce && !is_small_reduction()) plan_results();
}

void MessageCollective::plan_reduction() {
  const std::size_t bytes = reduced_into_.size();
  const bool streamed = bytes > kInlineBytes;
  to_reduce_ = streamed ? (bytes + chunk_ - 1) / chunk_ : 1;
  if (streamed) {
    const std::size_t slots = std::min(ChunkStream::kAtOnce, to_reduce_) * chunk_;
    scratch_.resize(slots * static_cast<std::size_t>(world_size_ - 1));
    std::size_t at = 0;
    for (int r = 0; r < world_size_; ++r) {
      if (r == rank_) continue;
      streams_.emplace_back(ChunkStream::Way::kReceive, r, Channel::kData, std::span(scratch_).subspan(at, slots), bytes, chunk_,
                            ChunkStream::Gate::kScratch);
      at += slots;
    }
  }
  if (spec_.kind == Collective::kAllReduce && !is_small_reduction()) plan_results();
}

void MessageCollective::plan_results() {
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    if (!share(rank_).empty())
      streams_.emplace_back(ChunkStream::Way::kSend, r, Channel::kResults, share(rank_), share(rank_).size(), chunk_,
                            ChunkStream::Gate::kReduced);
    if (!share(r).empty())
      streams_.emplace_back(ChunkStream::Way::kReceive, r, Channel::kResults, share(r), share(r).size(), chunk_, ChunkStream::Gate::kOpen);
  }
}

void MessageCollective::plan_shares_of_broadcast() {
  const bool is_root = rank_ == spec_.root;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    if (r != spec_.root && !share(rank_).empty())
      streams_.emplace_back(ChunkStream::Way::kSend, r, Channel::kResults, share(rank_), share(rank_).size(), chunk_,
                            is_root ? ChunkStream::Gate::kOpen : ChunkStream::Gate::kReceived);
    if (!is_root && !share(r).empty())
      streams_.emplace_back(ChunkStream::Way::kReceive, r, Channel::kResults, share(r), share(r).size(), chunk_, ChunkStream::Gate::kOpen);
  }
}

Result<void> MessageCollective::meet(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  SHOAL_TRY(const Header header, decode(std::span(peer.in).first(peer.received.bytes)));
  const Entry theirs = header.entry();
  if (theirs.sequence != entry_.sequence || !agree(theirs, entry_)) {
    return fail(invalid_argument(fmt::format("the ranks' collectives differ: rank {} is in {}, rank {} in {}", rank_, describe(entry_),
                                             rank, describe(theirs)))
                    .with_reason("Diverged")
                    .with_hint("every rank must make the same calls, with the same sizes and dtypes, in the same order"));
  }
  if (header.sent != bytes_from(rank)) {
    return fail(invalid_argument(fmt::format("in {}, rank {} sends {} bytes to rank {}, which expects {}", describe(entry_), rank,
                                             header.sent, rank_, bytes_from(rank)))
                    .with_reason("Diverged")
                    .with_hint("the sizes that a rank sends and that the other rank expects must be equal"));
  }
  peer.described = true;
  if (header.inline_bytes == 0 || !reduced_into_.empty()) return {};  // a reduction reads the inline data in place
  std::byte* into = spec_.output.data();
  if (spec_.kind == Collective::kAllGather) into += begins_[static_cast<std::size_t>(rank)];
  if (spec_.kind == Collective::kAllToAll) into += receive_begins_[static_cast<std::size_t>(rank)];
  if (spec_.kind == Collective::kBroadcast && spec_.output.size() > kInlineBytes) into = share(rank_).data();
  copy(into, {peer.inlined(), header.inline_bytes});
  return {};
}

Result<bool> MessageCollective::advance() {
  bool moved = false;
  if (!started_) {
    start();
    moved = true;
  }
  for (int r = 0; r < world_size_; ++r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (r == rank_ || peer.described) continue;
    if (peer.received.state == MessageLayer::Transfer::State::kFailed) return fail(wrong_size(r));
    if (!peer.received.complete()) continue;
    SHOAL_OK(meet(r));
    moved = true;
  }
  for (bool again = true; again;) {
    again = false;
    for (auto& stream : streams_) {
      SHOAL_TRY(const bool ended, stream.collect());
      again |= ended;
      while (stream.has_room() && is_open(stream)) {
        stream.begin_next(group_);
        moved = true;
      }
    }
    while (reduce_next()) again = true;
    moved |= again;
  }
  return moved | copy_own_part();
}

bool MessageCollective::copy_own_part() {
  if (own_part_.empty()) return false;
  const auto next = own_part_.first(std::min(own_part_.size(), kCopiedAtOnce));
  copy(own_part_into_, next);
  own_part_ = own_part_.subspan(next.size());
  own_part_into_ += next.size();
  return true;
}

bool MessageCollective::is_open(const ChunkStream& stream) const {
  if (stream.way() == ChunkStream::Way::kReceive && !peers_[static_cast<std::size_t>(stream.peer())].described) return false;
  switch (stream.gate()) {
    case ChunkStream::Gate::kOpen:
      return true;
    case ChunkStream::Gate::kReduced:
      return stream.begun() < reduced_;
    case ChunkStream::Gate::kScratch:
      return stream.begun() < reduced_ + ChunkStream::kAtOnce;
    case ChunkStream::Gate::kReceived: {
      const auto& root = peers_[static_cast<std::size_t>(spec_.root)];
      if (share(rank_).size() <= kInlineBytes) return root.described;
      for (const auto& other : streams_) {
        if (other.way() == ChunkStream::Way::kReceive && other.peer() == spec_.root && other.channel() == Channel::kData)
          return stream.begun() < other.ended();
      }
      return false;
    }
  }
  return false;
}

bool MessageCollective::reduce_next() {
  if (reduced_ == to_reduce_) return false;
  const std::size_t at = reduced_ * chunk_;
  const bool streamed = reduced_into_.size() > kInlineBytes;
  std::vector<const std::byte*> sources(static_cast<std::size_t>(world_size_));
  sources[static_cast<std::size_t>(rank_)] = own_input_ + at;
  if (streamed) {
    for (const auto& stream : streams_) {
      if (stream.gate() != ChunkStream::Gate::kScratch) continue;
      if (stream.ended() <= reduced_) return false;
      sources[static_cast<std::size_t>(stream.peer())] = stream.chunk(reduced_).data();
    }
  } else {
    for (int r = 0; r < world_size_; ++r) {
      const Peer& peer = peers_[static_cast<std::size_t>(r)];
      if (r == rank_) continue;
      if (!peer.described) return false;
      sources[static_cast<std::size_t>(r)] = peer.inlined();
    }
  }
  const std::size_t bytes = streamed ? std::min(chunk_, reduced_into_.size() - at) : reduced_into_.size();
  reduce(spec_.dtype, spec_.op, sources, reduced_into_.data() + at, bytes / dtype_bytes(spec_.dtype));
  ++reduced_;
  return true;
}

bool MessageCollective::complete() const {
  if (!started_ || reduced_ != to_reduce_ || !own_part_.empty()) return false;
  for (int r = 0; r < world_size_; ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (r != rank_ && (!peer.described || !peer.sent.complete())) return false;
  }
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream.complete(); });
}

int MessageCollective::missing() const {
  for (int i = 1; i < world_size_; ++i) {
    const int r = (rank_ + i) % world_size_;
    if (!peers_[static_cast<std::size_t>(r)].described) return r;
  }
  for (const auto& stream : streams_) {
    if (!stream.complete()) return stream.peer();
  }
  return -1;
}

}  // namespace shoal::runtime
