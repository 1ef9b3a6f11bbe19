#include "fsdp/link/sums_exchange.h"

#include <algorithm>
#include <cstring>

#include "fsdp/kernels/kernels.h"

namespace shoal::fsdp {

namespace {

using Channel = runtime::MessageLayer::Channel;
constexpr StreamChannels kSumChannels{Channel::kControl, Channel::kResults};

}  // namespace

SumsExchange::Lane::Lane(runtime::MessageLayer& layer, int owner) : sender(layer, owner, kSumChannels) {}

SumsExchange::SumsExchange(LinkModel model, runtime::MessageLayer& layer, std::function<void()> changed)
    : model_(model),
      changed_(std::move(changed)),
      arriving_(static_cast<std::size_t>(model.hosts.num_hosts())),
      arrived_(static_cast<std::size_t>(model.hosts.num_hosts())),
      discarded_(static_cast<std::size_t>(model.hosts.num_hosts())) {
  for (int r = 0; r < model_.grid.world_size; ++r) {
    if (model_.remote(r) && model_.hosts.partner(r, model_.host()) == model_.rank) lanes_.push_back(std::make_unique<Lane>(layer, r));
  }
  for (int h = 0; h < model_.hosts.num_hosts(); ++h) {
    if (h == model_.host()) continue;
    StreamReceiver::Handler handler;
    handler.on_header = [this, h](std::span<const std::byte> bytes) { return on_header(h, bytes); };
    handler.on_record = [this, h] {
      const auto host = static_cast<std::size_t>(h);
      discarded_[host].clear();
      arrived_[host].store(arriving_[host] + 1, std::memory_order_release);
      changed_();
    };
    const std::size_t header = sizeof(Header) + model_.hosts.blocks(h).size() * Control::kMaxParameters;
    receivers_.push_back(
        std::make_unique<StreamReceiver>(layer, model_.hosts.partner(model_.rank, h), kSumChannels, header, std::move(handler)));
  }
}

// ---- the publishing thread -------------------------------------------------------------------------------------------------------------

void SumsExchange::published(std::uint64_t sequence, std::uint32_t unit, bool everywhere) {
  const std::lock_guard lock(mutex_);
  if (lanes_.empty()) return;
  publications_.push_back({sequence, unit, everywhere, lanes_.size()});
}

bool SumsExchange::sent(std::uint64_t sequence) const {
  const std::lock_guard lock(mutex_);
  return publications_.empty() || publications_.front().sequence > sequence;
}

int SumsExchange::missing_sender(std::uint64_t sequence) const {
  for (int h = 0; h < model_.hosts.num_hosts(); ++h) {
    if (h == model_.host() || arrived_[static_cast<std::size_t>(h)].load(std::memory_order_acquire) > sequence) continue;
    return model_.hosts.partner(model_.rank, h);
  }
  return -1;
}

void SumsExchange::drop() {
  const std::lock_guard lock(mutex_);
  for (auto& p : publications_) p.dropped = true;
}

// ---- the link's thread -----------------------------------------------------------------------------------------------------------------

bool SumsExchange::finished() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(lanes_, [&](const auto& lane) {
    return (!lane->busy && lane->next - first_ == publications_.size()) || model_.has_ended(lane->sender.to());
  });
}

void SumsExchange::start() {
  for (auto& r : receivers_) r->start();
}

SumsExchange::Host SumsExchange::host_at(std::uint64_t sequence) const {
  Host out = Host::kPublished;
  for (const int r : model_.hosts.ranks(model_.host())) {
    const auto& words = model_.control.rank(r);
    const auto published = words.published.load(std::memory_order_acquire);
    if (attempt_of(published) > attempt_of(sequence)) return Host::kNever;
    if (published > sequence) continue;
    if (model_.has_ended(r)) return Host::kNever;
    out = Host::kPublishing;
  }
  return out;
}

void SumsExchange::append_pieces(std::vector<OutgoingPiece>& out, const Publication& p, int owner, Block block,
                                 std::size_t parameter) const {
  const Placed& placed = model_.units[p.unit]->layout().placed()[parameter];
  const Piece own = piece_of(placed, model_.grid.shards(), model_.grid.shard_of(owner));
  const int end = block.begin + block.size;
  const DType reduce_dtype = placed.reduce_dtype();
  if (end - block.begin == 1) {
    const std::byte* const slot = model_.slots.at(model_.slots.leaf_of(block.begin), p.sequence, placed);
    const std::size_t element = dtype_bytes(reduce_dtype);
    for (std::size_t k = 0; k < own.runs; ++k) out.push_back({own.length * element, slot + (own.begin + k * own.stride) * element});
    return;
  }
  std::vector<Source> sources;
  for (int r = block.begin; r < end; ++r) {
    if (!sums(owner, r, p.everywhere) || model_.control.rank(r).slots[p.sequence % model_.slots.num_slots()].present[parameter] == 0)
      continue;
    sources.push_back({model_.slots.at(model_.slots.leaf_of(r), p.sequence, placed), reduce_dtype, model_.hosts.place_of(r)});
  }
  const DType sum = sum_dtype(placed, p.everywhere);
  for (std::size_t k = 0; k < own.runs; ++k) {
    OutgoingPiece piece{own.length * dtype_bytes(sum)};
    piece.compute = [sources, first = own.begin + k * own.stride, reduce_dtype, sum](std::size_t offset, std::span<std::byte> bytes) {
      auto moved = sources;
      for (Source& s : moved) s.data += (first + offset / dtype_bytes(sum)) * dtype_bytes(reduce_dtype);
      reduce(moved, 1, false, sum, bytes.data(), bytes.size() / dtype_bytes(sum));
    };
    out.push_back(std::move(piece));
  }
}

void SumsExchange::begin(Lane& lane, const Publication& p) {
  const auto blocks = model_.hosts.blocks(model_.host());
  const std::size_t num_parameters = model_.units[p.unit]->layout().placed().size();
  std::vector<std::byte> header(sizeof(Header) + blocks.size() * num_parameters);
  const Header head{p.sequence, p.unit, static_cast<std::uint32_t>(num_parameters), p.everywhere ? 1u : 0u, 0};
  std::memcpy(header.data(), &head, sizeof head);
  std::byte* follows = header.data() + sizeof head;
  std::vector<OutgoingPiece> pieces;
  for (const Block block : blocks) {
    for (std::size_t i = 0; i < num_parameters; ++i, ++follows) {
      bool any = false;
      for (int r = block.begin; r < block.begin + block.size; ++r) {
        const auto& words = model_.control.rank(r).slots[p.sequence % model_.slots.num_slots()];
        any |= sums(lane.sender.to(), r, p.everywhere) && words.present[i] != 0;
      }
      *follows = static_cast<std::byte>(any);
      if (any) append_pieces(pieces, p, lane.sender.to(), block, i);
    }
  }
  lane.sender.begin(std::move(header), std::move(pieces));
}

std::optional<std::vector<std::span<std::byte>>> SumsExchange::on_header(int host, std::span<const std::byte> bytes) {
  Header head;
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto follows = bytes.subspan(sizeof head);
  if (head.unit >= model_.units.size()) return std::nullopt;
  const auto& placed = model_.units[head.unit]->layout().placed();
  const auto blocks = model_.hosts.blocks(host);
  if (head.num_parameters != placed.size() || follows.size() != blocks.size() * placed.size()) return std::nullopt;
  arriving_[static_cast<std::size_t>(host)] = head.sequence;
  // Sums of an attempt that this rank has ended may come when their slots are in use again. They are received elsewhere, and discarded.
  const bool old = attempt_of(head.sequence) < attempt_of(model_.control.rank(model_.rank).published.load(std::memory_order_acquire));
  std::vector<std::span<std::byte>> out;
  std::size_t at = 0;
  for (const Block block : blocks) {
    const std::size_t leaf = model_.slots.leaf_of(block.begin);
    for (const Placed& p : placed) {
      if (follows[at++] == std::byte{0}) continue;
      const Piece own = piece_of(p, model_.grid.shards(), model_.grid.shard_of(model_.rank));
      const std::size_t element = dtype_bytes(model_.slots.dtype(leaf, p, head.everywhere != 0));
      for (std::size_t k = 0; k < own.runs; ++k) {
        const std::size_t size = own.length * element;
        std::byte* const slot = model_.slots.at(leaf, head.sequence, p) + (own.begin + k * own.stride) * element;
        out.emplace_back(old ? discarded_[static_cast<std::size_t>(host)].emplace_back(size).data() : slot, size);
      }
    }
  }
  return out;
}

bool SumsExchange::advance() {
  bool progress = false, changed = false;
  {
    const std::lock_guard lock(mutex_);
    for (auto& lane : lanes_) {
      if (lane->busy && lane->sender.idle()) {
        lane->busy = false;
        --publications_[lane->sending - first_].unsent;
        progress = true;
      }
      while (!lane->busy && lane->next - first_ < publications_.size()) {
        Publication& p = publications_[lane->next - first_];
        if (!p.dropped) {
          const Host host = host_at(p.sequence);
          if (host == Host::kPublishing) break;
          p.dropped = host == Host::kNever;
        }
        lane->sending = lane->next++;
        if (p.dropped) {
          --p.unsent;
        } else {
          begin(*lane, p);
          lane->busy = true;
        }
        progress = true;
      }
    }
    while (!publications_.empty() && publications_.front().unsent == 0) {
      publications_.pop_front();
      ++first_;
      changed = true;
    }
  }
  for (auto& lane : lanes_) progress |= lane->sender.advance();
  for (auto& r : receivers_) progress |= r->advance();
  if (changed) changed_();
  return progress || changed;
}

}  // namespace shoal::fsdp
