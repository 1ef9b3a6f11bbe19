#include "runtime/transport/messages/message_group.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "runtime/core/utf8.h"
#include "runtime/transport/messages/header.h"
#include "runtime/wire/codec.h"

namespace shoal::runtime {

namespace {

constexpr auto kCauseGrace = std::chrono::milliseconds(100);  // after a connection breaks: for the node to report the cause
constexpr auto kReporting = std::chrono::milliseconds(200);   // for other ranks to get a report
constexpr auto kPollInterval = std::chrono::milliseconds(20);
constexpr std::size_t kMinControlBytes = 4096;  // for the text of a failure

// At most `limit` bytes: a long error loses its context and the end of its texts.
Bytes encode_within(const Error& error, std::size_t limit) {
  Bytes whole = encode_error(error);
  if (whole.size() <= limit) return whole;
  const auto cut = [](const std::string& text, std::size_t bytes) { return std::string(utf8_prefix(text, bytes)); };
  return encode_error(Error(error.code(), cut(error.message(), limit / 2) + "...")
                          .with_reason(cut(error.reason(), limit / 16))
                          .with_hint(cut(error.hint(), limit / 4)));
}

}  // namespace

MessageGroup::MessageGroup(std::shared_ptr<MessageLayer> layer, std::vector<int> ranks, int rank, const Clock& clock,
                           const CommunicatorRequest& request)
    : layer_(std::move(layer)),
      ranks_(std::move(ranks)),
      rank_(rank),
      clock_(clock),
      death_(request.messages->death),
      chunk_bytes_(request.messages->chunk_bytes),
      control_bytes_(std::max(kMinControlBytes, 1 + ranks_.size() * sizeof(int))),
      peers_(ranks_.size()) {
  for (int r = 0; r < world_size(); ++r) {
    if (r == rank_) continue;
    peers_[static_cast<std::size_t>(r)].control.resize(control_bytes_);
    receive_control(r);
  }
}

MessageGroup::~MessageGroup() {
  if (!superseded_) layer_->reset(layer_ranks(lost_));  // no transfer outlives its memory
}

void MessageGroup::send(int to, Channel channel, std::span<const std::byte> data, Transfer& transfer) {
  layer_->send(ranks_[static_cast<std::size_t>(to)], channel, data, transfer);
}

void MessageGroup::receive(int from, Channel channel, std::span<std::byte> data, Transfer& transfer) {
  layer_->receive(ranks_[static_cast<std::size_t>(from)], channel, data, transfer);
}

void MessageGroup::receive_control(int from) {
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  receive(from, Channel::kControl, peer.control, peer.receiving);
}

bool MessageGroup::progress() {
  bool moved = layer_->progress();
  for (int r = 0; r < world_size(); ++r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (peer.receiving.state == Transfer::State::kFailed && !closed_) fail(wrong_size(r));
    while (r != rank_ && peer.receiving.complete()) {
      const std::vector<std::byte> message(peer.control.begin(), peer.control.begin() + static_cast<std::ptrdiff_t>(peer.receiving.bytes));
      receive_control(r);
      handle_control(r, message);
      moved = true;
    }
  }
  return moved;
}

void MessageGroup::handle_control(int from, std::span<const std::byte> message) {
  if (message.empty()) return;
  const auto body = message.subspan(1);
  switch (static_cast<Control>(message[0])) {
    case Control::kFailed:
      peers_[static_cast<std::size_t>(from)].closing = true;
      if (!closed_ && !failure()) fail(decode_error(Bytes::copy_of(body.data(), body.size())));
      return;
    case Control::kLeft:
      peers_[static_cast<std::size_t>(from)].left = true;
      return;
    case Control::kSurvivors: {
      std::vector<int> ranks(body.size() / sizeof(int));
      std::memcpy(ranks.data(), body.data(), ranks.size() * sizeof(int));
      const bool ascends = std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
      if (ranks.empty() || !ascends || ranks.front() < 0 || ranks.back() >= world_size()) {
        peers_[static_cast<std::size_t>(from)].left = true;  // a malformed list: the next rank decides, without rank `from`
      } else if (!survivors_) {
        survivors_ = std::move(ranks);
      }
      return;
    }
  }
}

void MessageGroup::fail(const Error& cause) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = cause;
}

std::optional<Error> MessageGroup::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Error MessageGroup::failure_in(const std::string& operation) const {
  auto cause = failure();
  if (!cause) return internal("an operation ended without a cause");
  return Error(*cause).in("in " + operation).in(fmt::format("seen by rank {}", rank_));
}

Error MessageGroup::cause_of_loss(int rank, const Error& broken) const {
  return unavailable(fmt::format("rank {} is gone: {}", rank, death(rank).value_or(broken.message()))).with_reason("ActorDied");
}

bool MessageGroup::has_failed() {
  if (failure()) return true;
  for (int r = 0; r < world_size(); ++r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (r == rank_ || peer.left || peer.closing) continue;
    const int at = ranks_[static_cast<std::size_t>(r)];
    const bool dead = death(r).has_value();
    const auto broken = layer_->lost(at);
    if (!dead && !broken) continue;
    const auto now = clock_.now();
    if (!peer.lost_since) peer.lost_since = now;
    // The node reports how a process ended; the broken connection alone does not show it.
    if (!dead && death_ && now - *peer.lost_since < kCauseGrace) continue;
    lost_ = lost();
    fail(cause_of_loss(r, broken.value_or(unavailable("its process has ended"))));
    return true;
  }
  return false;
}

std::vector<int> MessageGroup::lost() const {
  if (closed_) return lost_;
  std::vector<int> out;
  for (int r = 0; r < world_size(); ++r) {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    const int at = ranks_[static_cast<std::size_t>(r)];
    // A rank that has found the failure first closes its connections before this rank does, but is not lost.
    if (r != rank_ && (peer.left || death(r) || (!peer.closing && layer_->lost(at)))) out.push_back(r);
  }
  return out;
}

bool MessageGroup::send_to_all(Control kind, std::span<const std::byte> body, Duration limit) {
  Report& report = reports_.emplace_back();
  report.message.push_back(static_cast<std::byte>(kind));
  report.message.insert(report.message.end(), body.begin(), body.end());
  report.sends.resize(ranks_.size());
  const auto pending = [&](int r) { return report.sends[static_cast<std::size_t>(r)].state == Transfer::State::kPending && reachable(r); };
  for (int r = 0; r < world_size(); ++r) {
    if (reachable(r)) send(r, Channel::kControl, report.message, report.sends[static_cast<std::size_t>(r)]);
  }
  const auto until = clock_.now() + limit;
  bool sent = true;
  for (int r = 0; r < world_size(); ++r) {
    while (pending(r) && clock_.now() < until) {
      if (!layer_->progress()) layer_->wait(kPollInterval);
    }
    sent &= !pending(r);
  }
  layer_->flush(std::min<Duration>(until - clock_.now(), kReporting));
  return sent;
}

bool MessageGroup::reachable(int rank) const {
  return rank != rank_ && !has_left(rank) && !layer_->lost(ranks_[static_cast<std::size_t>(rank)]) &&
         std::find(lost_.begin(), lost_.end(), rank) == lost_.end();
}

void MessageGroup::close() {
  if (closed_) return;
  if (lost_.empty()) lost_ = lost();
  if (const auto cause = failure()) {
    // Reports the cause also to ranks that have it from another rank. Otherwise they would take the end of the connections for the end of
    // this rank.
    const Bytes body = encode_within(*cause, control_bytes_ - 1);
    (void)send_to_all(Control::kFailed, body.span(), kReporting);
  } else {
    layer_->flush(kReporting);  // operations of other ranks may need what this rank has sent
  }
  layer_->reset(layer_ranks(lost_));
  closed_ = true;  // callers that see this free their buffers
  for (int r = 0; r < world_size(); ++r) {
    if (reachable(r)) receive_control(r);
  }
}

void MessageGroup::leave() {
  if (!closed_) (void)send_to_all(Control::kLeft, {}, kReporting);
}

Result<std::vector<int>> MessageGroup::agree_on_survivors(Duration limit) {
  const auto until = clock_.now() + limit;
  while (!survivors_) {
    progress();
    int leader = 0;
    while (leader != rank_ && !reachable(leader)) ++leader;
    if (leader == rank_) {
      std::vector<int> ranks;
      for (int r = 0; r < world_size(); ++r) {
        if (r == rank_ || reachable(r)) ranks.push_back(r);
      }
      // Some ranks may not have failed yet: connections to them are made once they have failed.
      if (!send_to_all(Control::kSurvivors, std::as_bytes(std::span(ranks)), until - clock_.now()))
        return shoal::fail(deadline_exceeded(fmt::format("rank {} waited for other ranks to form the group again", rank_))
                               .with_reason("Late")
                               .with_hint("every rank that is left calls reform()"));
      survivors_ = std::move(ranks);
    } else if (clock_.now() > until) {
      return shoal::fail(deadline_exceeded(fmt::format("rank {} waited for rank {} to form the group again", rank_, leader))
                             .with_reason("Late")
                             .with_hint("every rank that is left calls reform()"));
    } else if (!survivors_) {
      layer_->wait(kPollInterval);
    }
  }
  layer_->begin_epoch();
  superseded_ = true;
  return *survivors_;
}

std::vector<int> MessageGroup::layer_ranks(const std::vector<int>& ranks) const {
  std::vector<int> out;
  for (const int r : ranks) out.push_back(ranks_[static_cast<std::size_t>(r)]);
  return out;
}

}  // namespace shoal::runtime
