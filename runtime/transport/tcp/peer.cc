#include "runtime/transport/tcp/peer.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>

namespace shoal::runtime {

namespace {

// The silence after which each check sends a probe, beside the kernel's first one after 1 s. So the loss of single packets loses no rank.
constexpr auto kProbeAgain = std::chrono::milliseconds(1100);

struct Silence {
  std::chrono::milliseconds since{};  // time since the last packet
  bool waits = false;                 // for an answer to data or to a keep-alive probe
};

Silence silence_of(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  return {std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv)),
          info.tcpi_unacked > 0 || info.tcpi_probes > 0};
}

// Makes the kernel send a keep-alive probe now: it does so when it gets a time until probes begin that has passed already.
void probe(int socket) {
  const int second = 1;
  (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof second);
}

bool acknowledged(int socket) {
  int queued = 0;
  return ioctl(socket, SIOCOUTQ, &queued) != 0 || queued == 0;
}

}  // namespace

ConnectionPlan::ConnectionPlan(std::uint32_t per_bulk) {
  using enum MessageLayer::Channel;
  for (const auto channel : {kHeaders, kMessages, kControl}) channels_.push_back(channel);
  for (const auto channel : {kData, kResults, kMessageData}) channels_.insert(channels_.end(), per_bulk, channel);
}

Peer::Peer(Connection::Place place, const ConnectionPlan& numbers, RankAddress address, std::size_t piece_bytes)
    : place_(place), plan_(numbers), address_(std::move(address)), piece_bytes_(piece_bytes), connections_(numbers.size() - 1) {
  for (std::size_t c = 0; c < kNumChannels; ++c) queues_.emplace_back(static_cast<Channel>(c));
  for (std::uint32_t number = 1; number < plan_.size(); ++number) queues(plan_.channel(number)).numbers.push_back(number);
}

bool Peer::complete() const {
  return watch_ && std::all_of(connections_.begin(), connections_.end(), [](const auto& each) { return each != nullptr; });
}

template <class F>
void Peer::each_of(Channel channel, F&& act) {
  for (const auto number : queues(channel).numbers) {
    if (auto& connection = connections_[number - 1]) act(*connection);
  }
}

void Peer::install(std::uint32_t number, ByteStream stream, std::uint32_t epoch) {
  if (number == ConnectionPlan::kWatch) {
    watch_ = std::make_unique<Watch>(place_, std::move(stream));
    return;
  }
  const auto channel = plan_.channel(number);
  auto& its = queues(channel);
  connections_[number - 1] = std::make_unique<Connection>(place_, std::move(stream), channel, its.receives, its.sends, epoch, piece_bytes_);
}

void Peer::send(Channel channel, std::span<const std::byte> data, Transfer& transfer) {
  if (refuses_) {
    transfer.state = Transfer::State::kFailed;
    return place_.events.transfer_ended();
  }
  auto& sends = queues(channel).sends;
  sends.push(data, transfer);
  each_of(channel, [&](Connection& connection) {
    if (sends.has_piece()) connection.write();
  });
}

void Peer::receive(Channel channel, std::span<std::byte> data, Transfer& transfer) {
  queues(channel).receives.post(data, transfer);
  each_of(channel, [](Connection& connection) { connection.receive_posted(); });
}

void Peer::refuse_sends() {
  refuses_ = true;
  for (auto& connection : connections_) {
    if (connection) connection->stop_writing();
  }
  for (auto& each : queues_) each.sends.clear();
  place_.events.transfer_ended();
}

void Peer::drain_control() {
  each_of(Channel::kControl, [](Connection& connection) {
    connection.readable = connection.hung_up = true;
    connection.advance();
  });
}

bool Peer::flushed() const {
  for (const auto& each : queues_) {
    if (!each.sends.empty()) return false;
  }
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& each) { return !each || acknowledged(each->socket()); });
}

Duration Peer::silence(Duration limit) const {
  if (!watch_) return {};
  Silence out = silence_of(watch_->socket());
  if (out.since >= kProbeAgain) probe(watch_->socket());
  if (out.since < limit) return {};
  for (const auto& connection : connections_) {
    if (!connection) continue;
    const Silence its = silence_of(connection->socket());
    out.since = std::min(out.since, its.since);
    out.waits |= its.waits;
  }
  return out.waits && out.since >= limit ? Duration(out.since) : Duration{};
}

void Peer::depart(std::uint32_t epoch) {
  if (watch_) watch_->depart(epoch);
}

void Peer::close() {
  watch_.reset();
  for (auto& connection : connections_) connection.reset();
  for (auto& each : queues_) {
    each.receives.clear();
    each.sends.clear();
  }
  refuses_ = false;
}

void Peer::begin_epoch(std::uint32_t epoch) {
  for (auto& each : queues_) {
    each.receives.clear();
    each.sends.clear();
  }
  for (auto& connection : connections_) {
    if (connection) connection->begin_epoch(epoch);
  }
}

}  // namespace shoal::runtime
