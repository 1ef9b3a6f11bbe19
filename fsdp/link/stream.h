// A stream of records from one rank to another. A record is a header and pieces of memory, which travel in messages: large pieces without
// a copy, small ones together.
//
// Both sides divide the pieces into messages alike. So a receiver, which finds the sizes of all pieces by the header, has the memory of
// each message ready before it arrives. At most kAtOnce messages are under way, and no more than their bytes are buffered. One thread at a
// time uses a stream.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "runtime/transport/message_layer.h"

namespace shoal::fsdp {

// Channels of a stream: of its headers, and of its data.
struct StreamChannels {
  runtime::MessageLayer::Channel headers, data;
};

// A part of a piece in a message.
struct Fragment {
  std::size_t piece = 0;
  std::size_t offset = 0;  // within the piece
  std::size_t bytes = 0;
};
using Message = std::vector<Fragment>;  // with one fragment, it is sent from, and received in, the piece's own memory

// Divides pieces of these sizes into messages, in order.
std::vector<Message> messages_of(std::span<const std::size_t> piece_bytes);

// A piece that a rank sends: memory, or values that are computed when their message is due.
struct OutgoingPiece {
  std::size_t bytes = 0;
  const std::byte* data = nullptr;
  std::function<void(std::size_t offset, std::span<std::byte> out)> compute = {};  // called where `data` is null
};

class StreamSender {
 public:
  static constexpr std::size_t kAtOnce = 4;
  static constexpr std::size_t kMessageBytes = 1 << 20;

  StreamSender(runtime::MessageLayer& layer, int to, StreamChannels channels) : layer_(layer), to_(to), channels_(channels) {}
  StreamSender(const StreamSender&) = delete;

  bool idle() const { return !busy_; }
  int to() const { return to_; }
  // Begins a record; only while idle. The pieces' memory stays unchanged until the stream is idle again.
  void begin(std::vector<std::byte> header, std::vector<OutgoingPiece> pieces);
  // Advances. Returns true after progress. A record to a rank that cannot be reached ends at once.
  bool advance();

 private:
  using Transfer = runtime::MessageLayer::Transfer;
  void send_next();
  std::span<const std::byte> data_of(const Message& message, std::vector<std::byte>& buffer);

  runtime::MessageLayer& layer_;
  const int to_;
  const StreamChannels channels_;
  bool busy_ = false;
  std::vector<std::byte> header_;
  Transfer header_sent_;
  std::vector<OutgoingPiece> pieces_;
  std::vector<Message> messages_;
  std::size_t begun_ = 0, ended_ = 0;  // numbers of messages
  std::array<Transfer, kAtOnce> sent_;
  std::array<std::vector<std::byte>, kAtOnce> buffers_;  // for messages with several fragments, or computed ones
};

class StreamReceiver {
 public:
  struct Handler {
    // The pieces of a record by its header. On nullopt the stream ends, because the header is wrong.
    std::function<std::optional<std::vector<std::span<std::byte>>>(std::span<const std::byte> header)> on_header;
    std::function<void()> on_record;  // called once all pieces have arrived
  };
  StreamReceiver(runtime::MessageLayer& layer, int from, StreamChannels channels, std::size_t header_bytes, Handler handler)
      : layer_(layer), from_(from), channels_(channels), header_(header_bytes), handler_(std::move(handler)) {}
  StreamReceiver(const StreamReceiver&) = delete;

  int from() const { return from_; }
  void start() { receive_header(); }
  // Advances. Returns true after progress.
  bool advance();
  // True once a receive has failed or a header was wrong; nothing more arrives.
  bool ended() const { return state_ == State::kEnded; }

 private:
  using Transfer = runtime::MessageLayer::Transfer;
  enum class State { kHeader, kPieces, kEnded };
  void receive_header();
  void receive_next();
  bool take_header();
  void finish_message(const Message& message, const std::vector<std::byte>& buffer);

  runtime::MessageLayer& layer_;
  const int from_;
  const StreamChannels channels_;
  std::vector<std::byte> header_;
  const Handler handler_;
  State state_ = State::kHeader;
  Transfer header_received_;
  std::vector<std::span<std::byte>> pieces_;
  std::vector<Message> messages_;
  std::size_t begun_ = 0, ended_ = 0;
  std::array<Transfer, StreamSender::kAtOnce> received_;
  std::array<std::vector<std::byte>, StreamSender::kAtOnce> buffers_;
};

}  // namespace shoal::fsdp
