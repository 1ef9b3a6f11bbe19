// The transfers of one channel between this rank and another: posted receives, and sends that connections take piece by piece.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "runtime/transport/tcp/frame.h"

namespace shoal::runtime {

using Transfer = MessageLayer::Transfer;

// Receives in the order of their messages. Pieces of a message arrive in any order, over several connections.
class PostedReceives {
 public:
  void post(std::span<std::byte> data, Transfer& transfer);

  // Returns the memory for a piece, or nullopt if its receive is not posted yet. If the memory is shorter than the piece, the message is
  // longer than its receive, which has failed: the piece is to be discarded. Returns DataLoss for a piece that contradicts others of its
  // message.
  Result<std::optional<std::span<std::byte>>> room(const Frame& frame);
  // Records that the piece was received. Returns true if it was the last one of its message.
  bool arrived(const Frame& frame);
  // Fails all transfers, and begins to count messages anew.
  void clear();

 private:
  struct Posted {
    std::span<std::byte> data;
    Transfer* transfer;  // null once the transfer has ended
    std::optional<std::uint64_t> total;
    std::uint64_t claimed = 0, arrived = 0;
  };
  std::deque<Posted> posted_;
  std::uint64_t first_ = 0;  // message number of posted_[0]
};

class QueuedSends {
 public:
  explicit QueuedSends(MessageLayer::Channel channel) : channel_(channel) {}

  void push(std::span<const std::byte> data, Transfer& transfer);
  bool has_piece() const { return taken_ < queued_.size(); }
  bool empty() const { return queued_.empty(); }
  struct Piece {
    Frame frame;
    std::span<const std::byte> data;
  };
  // Takes the next piece, of at most `limit` bytes. Call it only if has_piece().
  Piece take(std::uint32_t epoch, std::size_t limit);
  // Records that a piece was written. Returns true if it was the last one of its message, whose send is done.
  bool written(const Frame& frame);
  // Fails all transfers, and begins to count messages anew.
  void clear();

 private:
  struct Queued {
    std::span<const std::byte> data;
    Transfer* transfer;  // null once the transfer has ended
    std::size_t taken = 0, written = 0;
  };
  const MessageLayer::Channel channel_;
  std::deque<Queued> queued_;
  std::uint64_t first_ = 0;  // message number of queued_[0]
  std::size_t taken_ = 0;    // messages at the front whose pieces are all taken
};

}  // namespace shoal::runtime
