// What travels on a connection: a fixed header, a Cap'n Proto body, raw bytes beside it, and file descriptors.
//
// Bulk data never lies inside the body. The header is ours, so that its limits are checked before anything is parsed.
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
  kRequest = 1,  // wants a reply with the same id
  kReply = 2,
  kError = 3,   // a reply that is an Error
  kNotice = 4,  // wants no reply
  kLink = 5,    // of a connection to its other end; nobody else sees it
};

// The methods of kLink.
enum class LinkMethod : std::uint16_t {
  kOffer = 1,  // of rings (ring_connection.cc)
  kAccept = 2,
  kRefuse = 3,
  kStart = 4,
  kBell = 5,
  kPart = 6,  // of a payload of more bytes than a frame's (frame_io.h); its id is how many there are in all
};

struct Frame {
  FrameKind kind = FrameKind::kNotice;
  std::uint16_t method = 0;
  std::uint64_t id = 0;
  Bytes body;           // Cap'n Proto, or empty
  Bytes payload;        // uninterpreted
  std::vector<Fd> fds;  // only on unix sockets
  // This process had no room for the descriptors that came with it: fds is empty.
  bool fds_lost = false;

  std::size_t wire_bytes() const;
};

struct FrameLimits {
  std::uint32_t max_body_bytes = 1u << 20;
  std::uint64_t max_payload_bytes = 64u << 20;
  std::uint8_t max_fds = kMaxFds;
  static constexpr std::uint8_t kMaxFds = 250;  // the kernel passes 253 at once
};

// For what a peer, or a user, decides the size of: nothing when there is not so much memory.
std::optional<Bytes> allocate(std::size_t bytes);

// InvalidArgument/FrameTooLarge: it is not to be sent.
Result<void> check_size(const Frame& frame, const FrameLimits& limits);

struct FrameHeader {
  static constexpr std::size_t kBytes = 24;
  std::uint32_t body_bytes = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t id = 0;
  std::uint16_t method = 0;
  FrameKind kind = FrameKind::kNotice;
  std::uint8_t num_fds = 0;

  static FrameHeader of(const Frame& frame);
  std::array<std::byte, kBytes> encode() const;
};

// InvalidArgument when the header is not one of ours or exceeds a limit: the caller drops the peer.
Result<FrameHeader> decode_header(const std::byte* bytes, const FrameLimits& limits);

}  // namespace shoal::runtime
