// The connections of this rank to another one: the watch, and for each channel one or several.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/transport/tcp/connecting/rank_address.h"
#include "runtime/transport/tcp/connection.h"

namespace shoal::runtime {

// Numbers of the connections between two ranks: 0 is the watch, and each channel has some of the other numbers.
class ConnectionPlan {
 public:
  static constexpr std::uint32_t kWatch = 0;
  // `per_bulk`: connections of a channel with large messages.
  explicit ConnectionPlan(std::uint32_t per_bulk);
  std::uint32_t size() const { return static_cast<std::uint32_t>(channels_.size()) + 1; }
  MessageLayer::Channel channel(std::uint32_t number) const { return channels_[number - 1]; }
  // The lower rank makes the watch, the higher one the other connections. So each rank finds out at once if the other does not listen.
  static bool is_opened_by(std::uint32_t number, int rank, int other) { return (number == kWatch) == (rank < other); }

 private:
  std::vector<MessageLayer::Channel> channels_;
};

class Peer {
 public:
  using Channel = MessageLayer::Channel;

  Peer(Connection::Place place, const ConnectionPlan& numbers, RankAddress address, std::size_t piece_bytes);

  const RankAddress& address() const { return address_; }
  bool has(std::uint32_t number) const {
    return number == ConnectionPlan::kWatch ? watch_ != nullptr : connections_[number - 1] != nullptr;
  }
  bool complete() const;
  void install(std::uint32_t number, ByteStream stream, std::uint32_t epoch);

  void send(Channel channel, std::span<const std::byte> data, Transfer& transfer);
  void receive(Channel channel, std::span<std::byte> data, Transfer& transfer);
  // Fails present and later sends.
  void refuse_sends();
  // Receives the control messages that have arrived in the kernel.
  void drain_control();
  // True if the other host's kernel has received all sent bytes.
  bool flushed() const;
  // The time in which the other host has sent nothing although this host waits for an answer. Zero if this host does not wait, or
  // has waited for less than `limit`.
  Duration silence(Duration limit) const;

  // Announces on the watch that the connections are about to close.
  void depart(std::uint32_t epoch);
  // Closes the connections and fails all transfers.
  void close();
  void begin_epoch(std::uint32_t epoch);

 private:
  struct Queues {
    explicit Queues(Channel channel) : sends(channel) {}
    PostedReceives receives;
    QueuedSends sends;
    std::vector<std::uint32_t> numbers;
  };
  Queues& queues(Channel channel) { return queues_[index_of(channel)]; }
  template <class F>
  void each_of(Channel channel, F&& act);

  const Connection::Place place_;
  const ConnectionPlan& plan_;
  const RankAddress address_;
  const std::size_t piece_bytes_;
  std::vector<Queues> queues_;  // by channel
  bool refuses_ = false;
  std::unique_ptr<Watch> watch_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by number - 1
};

}  // namespace shoal::runtime
