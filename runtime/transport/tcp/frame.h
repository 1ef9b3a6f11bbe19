// The frames on a data connection: a header, then one piece of a message. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/core/result.h"
#include "runtime/transport/message_layer.h"

namespace shoal::runtime {

// Header of a piece. A header without message (`departs`) is the last one on a connection: its sender begins another epoch.
struct Frame {
  static constexpr std::size_t kBytes = 40;                 // on the wire
  static constexpr std::uint32_t kMaxPiece = 16u << 20;     // bytes of a piece
  static constexpr std::uint64_t kMaxMessage = 1ull << 48;  // bytes of a message

  MessageLayer::Channel channel = MessageLayer::Channel::kHeaders;
  bool departs = false;
  std::uint32_t epoch = 0;
  std::uint32_t bytes = 0;     // size of this piece
  std::uint64_t sequence = 0;  // the message's number among those of its channel and epoch, from 0
  std::uint64_t offset = 0;    // where this piece begins in its message
  std::uint64_t total = 0;     // bytes of the message
  bool operator==(const Frame&) const = default;
};

void encode(const Frame& frame, std::span<std::byte, Frame::kBytes> out);
// DataLoss for bytes that are no header, or that exceed a bound. A frame that it returns lies within its message.
Result<Frame> decode_frame(std::span<const std::byte, Frame::kBytes> in);

inline constexpr std::size_t kNumChannels = 6;
inline std::size_t index_of(MessageLayer::Channel channel) { return static_cast<std::size_t>(channel); }

}  // namespace shoal::runtime
