// Data that travel between two ranks in chunks, several at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "runtime/transport/messages/header.h"
#include "runtime/transport/messages/message_group.h"

namespace shoal::runtime {

class ChunkStream {
 public:
  static constexpr std::size_t kAtOnce = 4;

  enum class Way { kSend, kReceive };
  // When a chunk may begin.
  enum class Gate {
    kOpen,      // at once
    kReduced,   // once this rank has reduced it
    kReceived,  // once this rank has received it from the root
    kScratch,   // once the chunk `kAtOnce` before it is reduced
  };

  // `data`: the memory of all chunks, or with kScratch of kAtOnce chunks; `bytes`: the stream's size.
  ChunkStream(Way way, int peer, MessageLayer::Channel channel, std::span<std::byte> data, std::size_t bytes, std::size_t chunk, Gate gate)
      : way_(way), peer_(peer), channel_(channel), data_(data), bytes_(bytes), chunk_(chunk), gate_(gate) {}

  Way way() const { return way_; }
  int peer() const { return peer_; }
  MessageLayer::Channel channel() const { return channel_; }
  Gate gate() const { return gate_; }
  std::size_t chunks() const { return (bytes_ + chunk_ - 1) / chunk_; }
  std::size_t begun() const { return begun_; }
  std::size_t ended() const { return ended_; }  // chunks that have ended, in order
  bool complete() const { return ended_ == chunks(); }
  bool has_room() const { return begun_ < chunks() && begun_ - ended_ < kAtOnce; }
  // The memory of a chunk.
  std::span<std::byte> chunk(std::size_t index) const {
    const std::size_t at = gate_ == Gate::kScratch ? index % kAtOnce * chunk_ : index * chunk_;
    return data_.subspan(at, std::min(chunk_, bytes_ - index * chunk_));
  }

  void begin_next(MessageGroup& group) {
    auto& transfer = transfers_[begun_ % kAtOnce];
    transfer = {};
    if (way_ == Way::kSend) {
      group.send(peer_, channel_, chunk(begun_), transfer);
    } else {
      group.receive(peer_, channel_, chunk(begun_), transfer);
    }
    ++begun_;
  }
  // Counts chunks that have ended; true if there are any. DataLoss for a received chunk of another size. A send fails only when the
  // connection ends; the group reports the cause of that end.
  Result<bool> collect() {
    const std::size_t before = ended_;
    for (; ended_ < begun_; ++ended_) {
      const auto& transfer = transfers_[ended_ % kAtOnce];
      if (way_ == Way::kReceive && has_wrong_size(transfer)) return fail(wrong_size(peer_));
      if (!transfer.complete()) break;
    }
    return ended_ != before;
  }

 private:
  bool has_wrong_size(const MessageLayer::Transfer& transfer) const {
    return transfer.state == MessageLayer::Transfer::State::kFailed || (transfer.complete() && transfer.bytes != chunk(ended_).size());
  }

  Way way_;
  int peer_;
  MessageLayer::Channel channel_;
  std::span<std::byte> data_;
  std::size_t bytes_, chunk_;
  Gate gate_;
  std::size_t begun_ = 0, ended_ = 0;
  std::array<MessageLayer::Transfer, kAtOnce> transfers_;
};

}  // namespace shoal::runtime
