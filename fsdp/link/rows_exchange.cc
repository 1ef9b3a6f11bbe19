#include "fsdp/link/rows_exchange.h"

#include <algorithm>
#include <cstring>

#include "fsdp/link/hash.h"

namespace shoal::fsdp {

namespace {

using Channel = runtime::MessageLayer::Channel;
constexpr StreamChannels kRowChannels{Channel::kMessages, Channel::kData};
constexpr std::size_t kHashedAtOnce = 1 << 20;

}  // namespace

RowsExchange::Lane::Lane(runtime::MessageLayer& layer, int to) : sender(layer, to, kRowChannels) {}

RowsExchange::RowsExchange(LinkModel model, runtime::MessageLayer& layer, std::function<void()> arrived)
    : model_(model),
      layer_(layer),
      arrived_(std::move(arrived)),
      arriving_(static_cast<std::size_t>(model.grid.world_size)),
      sent_hashes_(model.units.size()) {
  const auto& [hosts, grid, rank] = std::tie(model_.hosts, model_.grid, model_.rank);
  const auto same_replica = [&](int r) { return grid.replica_of(r) == grid.replica_of(rank); };
  for (int h = 0; h < hosts.num_hosts(); ++h) {
    if (h == model_.host() || std::ranges::none_of(hosts.ranks(h), same_replica)) continue;
    lanes_.push_back(std::make_unique<Lane>(layer, hosts.partner(rank, h)));
  }
  for (int r = 0; r < grid.world_size; ++r) {
    const auto reads = [&](int local) { return grid.replica_of(local) == grid.replica_of(r); };
    if (!model_.remote(r) || hosts.partner(r, model_.host()) != rank || std::ranges::none_of(hosts.ranks(model_.host()), reads)) continue;
    StreamReceiver::Handler handler;
    handler.on_header = [this, r](std::span<const std::byte> bytes) { return on_header(r, bytes); };
    handler.on_record = [this, r] {
      const Header& h = arriving_[static_cast<std::size_t>(r)];
      model_.control.rows(r, h.unit).store(h.version, std::memory_order_release);
      arrived_();
    };
    receivers_.push_back(std::make_unique<StreamReceiver>(layer, r, kRowChannels, sizeof(Header), std::move(handler)));
  }
}

std::vector<std::span<std::byte>> RowsExchange::rows_of(std::size_t unit, int rank) const {
  const ShardedUnit& u = *model_.units[unit];
  const Grid grid = model_.grid;
  std::vector<std::span<std::byte>> out;
  for (std::size_t i = 0; i < u.layout().placed().size(); ++i) {
    const Placed& p = u.layout().placed()[i];
    if (p.parameter.external) continue;
    const Piece piece = piece_of(p, grid.shards(), grid.shard_of(rank));
    const std::size_t element = dtype_bytes(p.compute_dtype());
    std::byte* const whole = u.whole_of_replica(i, grid.replica_of(rank));
    for (std::size_t k = 0; k < piece.runs; ++k)
      out.emplace_back(whole + (piece.begin + k * piece.stride) * element, piece.length * element);
  }
  return out;
}

bool RowsExchange::hand_out(Task& task) {
  const auto& placed = model_.units[task.unit]->layout().placed();
  if (std::ranges::none_of(placed, [](const Placed& p) { return p.parameter.requires_grad; })) {
    if (!hash_) {
      hash_ = 1;
      unhashed_ = rows_of(task.unit, model_.rank);
    }
    for (std::size_t left = kHashedAtOnce; left > 0 && !unhashed_.empty();) {
      auto& rows = unhashed_.back();  // the rows of one parameter, perhaps none
      const auto some = rows.last(std::min(rows.size(), left));
      hash_ = hash_of(some, *hash_);
      left -= some.size();
      rows = rows.first(rows.size() - some.size());
      if (rows.empty()) unhashed_.pop_back();
    }
    if (!unhashed_.empty()) return false;
    task.unchanged = std::exchange(sent_hashes_[task.unit], hash_) == hash_;
    hash_.reset();
  }
  for (auto& lane : lanes_) lane->tasks.push_back(task);
  return true;
}

void RowsExchange::send(std::uint64_t version, const std::vector<std::uint32_t>& order) {
  if (lanes_.empty()) return;
  unsent_.fetch_add(order.size() * lanes_.size(), std::memory_order_acq_rel);
  const std::lock_guard lock(mutex_);
  for (const auto unit : order) queued_.push_back({version, unit, false});
}

bool RowsExchange::received() const {
  return std::ranges::all_of(receivers_, [&](const auto& receiver) {
    const auto entered = model_.control.rank(receiver->from()).entered.load(std::memory_order_acquire);
    bool all = true;
    for (std::size_t u = 0; u < model_.units.size(); ++u) all &= model_.control.rows(receiver->from(), u).load() >= entered;
    return all || receiver->ended() || layer_.lost(receiver->from());
  });
}

bool RowsExchange::finished() const {
  return sent() || std::ranges::all_of(lanes_, [&](const auto& lane) {
           const bool idle = waiting_.empty() && lane->tasks.empty() && !lane->sending;
           return idle || model_.has_ended(lane->sender.to());
         });
}

void RowsExchange::start() {
  for (auto& r : receivers_) r->start();
}

std::optional<std::vector<std::span<std::byte>>> RowsExchange::on_header(int from, std::span<const std::byte> bytes) {
  Header& header = arriving_[static_cast<std::size_t>(from)];
  if (bytes.size() != sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.unit >= model_.units.size()) return std::nullopt;
  if (header.unchanged != 0) return std::vector<std::span<std::byte>>();
  return rows_of(header.unit, from);
}

void RowsExchange::begin_record(Lane& lane) {
  const Task task = lane.tasks.front();
  lane.tasks.pop_front();
  const Header header{task.version, task.unit, task.unchanged ? 1u : 0u};
  const auto* raw = reinterpret_cast<const std::byte*>(&header);
  std::vector<OutgoingPiece> pieces;
  if (!task.unchanged) {
    for (const auto rows : rows_of(task.unit, model_.rank)) pieces.push_back({rows.size(), rows.data()});
  }
  lane.sender.begin({raw, raw + sizeof header}, std::move(pieces));
  lane.sending = true;
}

bool RowsExchange::advance() {
  bool progress = false, all_sent = false;
  if (!sent() && model_.models_agree()) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), queued_.begin(), queued_.end());
      queued_.clear();
    }
    if (!waiting_.empty()) {
      if (hand_out(waiting_.front())) waiting_.pop_front();
      progress = true;
    }
  }
  for (auto& lane : lanes_) {
    if (lane->sender.idle() && !lane->sending && !lane->tasks.empty()) {
      begin_record(*lane);
      progress = true;
    }
    progress |= lane->sender.advance();
    if (!lane->sending || !lane->sender.idle()) continue;
    lane->sending = false;
    all_sent |= unsent_.fetch_sub(1, std::memory_order_acq_rel) == 1;
    progress = true;
  }
  if (all_sent) arrived_();
  for (auto& r : receivers_) progress |= r->advance();
  return progress;
}

}  // namespace shoal::fsdp
