// A frame, the unit of a connection: a fixed header, a Cap'n Proto body, raw bytes (payload), and file descriptors.
//
// Bulk data goes into the payload, never into the body. The header has a format of its own, so that limits are checked before parsing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/core/bytes.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

enum class FrameKind : std::uint8_t {
  kRequest = 1,  // expects a reply with the same id
  kReply = 2,
  kError = 3,   // a reply with an Error
  kNotice = 4,  // expects no reply
  kLink = 5,    // between the two ends of a connection, invisible to its users
};

// The methods of kLink.
enum class LinkMethod : std::uint16_t {
  kOffer = 1,  // kOffer to kBell: setup and wake-ups of rings (ring/ring_connection.cc)
  kAccept = 2,
  kRefuse = 3,
  kStart = 4,
  kBell = 5,
  kPart = 6,  // part of a payload beyond a frame's limit (socket/send_queue.h); the id announces its message (socket/part.h)
};

struct Frame {
  FrameKind kind = FrameKind::kNotice;
  std::uint16_t method = 0;
  std::uint64_t id = 0;
  Bytes body;           // Cap'n Proto, or empty
  Bytes payload;        // uninterpreted
  std::vector<Fd> fds;  // only on unix sockets
  // This process could not open the descriptors that came with the frame: fds is empty.
  bool fds_lost = false;

  std::size_t wire_bytes() const;
};

struct FrameLimits {
  std::uint32_t max_body_bytes = 1u << 20;
  std::uint64_t max_payload_bytes = 64u << 20;
  // The largest payload of a message with this kind and method, which a receiver checks when the message is announced. Null: there is no
  // limit beside those for all messages.
  std::uint64_t (*max_payload_of)(FrameKind kind, std::uint16_t method) = nullptr;
  std::uint8_t max_fds = kMaxFds;
  static constexpr std::uint8_t kMaxFds = 250;  // the kernel's limit is 253
};

// For sizes that a peer or a user chooses: returns nullopt if there is not enough memory.
std::optional<Bytes> allocate(std::size_t bytes);

// Returns InvalidArgument/FrameTooLarge if the frame must not be sent.
Result<void> check_size(const Frame& frame, const FrameLimits& limits);

struct FrameHeader {
  static constexpr std::size_t kBytes = 24;
  std::uint32_t body_bytes = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t id = 0;
  std::uint16_t method = 0;
  FrameKind kind = FrameKind::kNotice;
  std::uint8_t num_fds = 0;

  static FrameHeader for_frame(const Frame& frame);
  std::array<std::byte, kBytes> encode() const;
};

// Returns InvalidArgument if the header is malformed or exceeds a limit; the caller then drops the peer.
Result<FrameHeader> decode_header(const std::byte* bytes, const FrameLimits& limits);

}  // namespace shoal::runtime
