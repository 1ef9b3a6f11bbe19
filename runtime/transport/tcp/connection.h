// Connections between two ranks after their introduction. The connections of a channel move its messages. The end of the watch connection
// shows the end of the other rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/transport/tcp/queues.h"
#include "runtime/transport/tcp/sockets/byte_stream.h"
#include "runtime/transport/tcp/sockets/poller.h"

namespace shoal::runtime {

// Calls that connections make to their layer. The layer keeps the connection until the call returns.
class ConnectionEvents {
 public:
  virtual ~ConnectionEvents() = default;
  virtual void transfer_ended() = 0;
  virtual void broke(int rank, const Error& why) = 0;  // a channel's connection has ended
  virtual void ended(int rank, const Error& why) = 0;  // the watch has ended
  virtual void departed(int rank) = 0;                 // the other rank begins another epoch, and closes its connections
};

// Reads straight into posted receives. A message without one stays in the kernel, and the connection reads no further.
class Connection final : public Pollable {
 public:
  struct Place {
    Poller& poller;
    ConnectionEvents& events;
    int rank;  // the rank at the other end
  };
  Connection(Place place, ByteStream stream, MessageLayer::Channel channel, PostedReceives& receives, QueuedSends& sends,
             std::uint32_t epoch, std::size_t piece_bytes);
  ~Connection() override { place_.poller.forget(socket(), *this); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return stream_.socket(); }
  void advance() override;
  // Writes the queued pieces, as far as the socket takes them.
  void write();
  // Reads on. To be called after a receive was posted.
  void receive_posted();
  void begin_epoch(std::uint32_t epoch);
  // Stops writing, because the queued sends are about to fail.
  void stop_writing();
  bool writes() const { return piece_.has_value(); }

 private:
  bool begin_piece();
  bool fill();
  void read();
  void received(std::size_t bytes);
  std::span<std::byte> discarded();

  const Place place_;
  ByteStream stream_;
  const MessageLayer::Channel channel_;
  PostedReceives& receives_;
  QueuedSends& sends_;
  std::uint32_t epoch_;
  const std::size_t piece_bytes_;
  bool broken_ = false, silent_ = false;

  std::vector<std::byte> staged_;  // headers, and small messages behind them
  std::size_t begin_ = 0, end_ = 0;
  std::optional<Frame> frame_;  // the piece that is being received
  std::size_t rest_ = 0;        // bytes of frame_ that are left
  std::byte* into_ = nullptr;   // memory for the rest; null: the rest is discarded
  bool held_ = false;           // reading waits for a receive to be posted, or for the frame's epoch
  std::vector<std::byte> waste_;

  std::optional<QueuedSends::Piece> piece_;  // the piece that is being sent
  std::array<std::byte, Frame::kBytes> header_{};
  std::size_t written_ = 0;  // written bytes of header and piece
};

// Carries no messages. The kernel's keep-alive probes show that the other host exists; a closed connection shows that the process ended.
class Watch final : public Pollable {
 public:
  Watch(Connection::Place place, ByteStream stream);
  ~Watch() override { place_.poller.forget(socket(), *this); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int socket() const { return stream_.socket(); }
  void advance() override;
  // Announces that this rank closes its connections, to begin another epoch.
  void depart(std::uint32_t epoch);

 private:
  const Connection::Place place_;
  ByteStream stream_;
  std::array<std::byte, Frame::kBytes> received_{};
  std::size_t bytes_ = 0;
  bool over_ = false;
};

}  // namespace shoal::runtime
