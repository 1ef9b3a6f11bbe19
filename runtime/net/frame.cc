#include "runtime/net/frame.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <string>

namespace shoal::runtime {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

namespace {

Error too_large(const char* what, std::size_t size, std::size_t limit) {
  return invalid_argument(std::string("a message's ") + what + " of " + std::to_string(size) + " exceeds the limit of " +
                          std::to_string(limit))
      .with_reason("FrameTooLarge");
}

}  // namespace

std::optional<Bytes> allocate(std::size_t bytes) {
  try {
    return Bytes(bytes);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

Result<void> check_size(const Frame& frame, const FrameLimits& limits) {
  if (frame.body.size() > limits.max_body_bytes) return fail(too_large("size in bytes", frame.body.size(), limits.max_body_bytes));
  std::uint64_t most = limits.max_payload_bytes;
  if (limits.max_payload_of != nullptr) most = std::min(most, limits.max_payload_of(frame.kind, frame.method));
  if (frame.payload.size() > most) return fail(too_large("payload in bytes", frame.payload.size(), most));
  if (frame.fds.size() > limits.max_fds) return fail(too_large("number of descriptors", frame.fds.size(), limits.max_fds));
  return {};
}

std::size_t Frame::wire_bytes() const { return FrameHeader::kBytes + body.size() + payload.size(); }

FrameHeader FrameHeader::for_frame(const Frame& frame) {
  return {
      static_cast<std::uint32_t>(frame.body.size()), static_cast<std::uint32_t>(frame.payload.size()), frame.id, frame.method, frame.kind,
      static_cast<std::uint8_t>(frame.fds.size())};
}

// The bytes of each field: body_bytes 0..3, payload_bytes 4..7, id 8..15, method 16..17, kind 18, num_fds 19, zero 20..23.
std::array<std::byte, FrameHeader::kBytes> FrameHeader::encode() const {
  std::array<std::byte, kBytes> out{};
  std::memcpy(&out[0], &body_bytes, 4);
  std::memcpy(&out[4], &payload_bytes, 4);
  std::memcpy(&out[8], &id, 8);
  std::memcpy(&out[16], &method, 2);
  out[18] = static_cast<std::byte>(kind);
  out[19] = static_cast<std::byte>(num_fds);
  return out;
}

Result<FrameHeader> decode_header(const std::byte* bytes, const FrameLimits& limits) {
  FrameHeader h;
  std::uint32_t zero = 0;
  std::memcpy(&h.body_bytes, bytes, 4);
  std::memcpy(&h.payload_bytes, bytes + 4, 4);
  std::memcpy(&h.id, bytes + 8, 8);
  std::memcpy(&h.method, bytes + 16, 2);
  h.kind = static_cast<FrameKind>(bytes[18]);
  h.num_fds = static_cast<std::uint8_t>(bytes[19]);
  std::memcpy(&zero, bytes + 20, 4);
  if (h.kind < FrameKind::kRequest || h.kind > FrameKind::kLink) return fail(invalid_argument("the frame has an unknown kind"));
  if (zero != 0) return fail(invalid_argument("the frame has unknown flags set"));
  if (h.body_bytes > limits.max_body_bytes) {
    return fail(invalid_argument("a frame's body of " + std::to_string(h.body_bytes) + " bytes exceeds the limit"));
  }
  if (h.body_bytes % 8 != 0) return fail(invalid_argument("a frame's body is not a whole number of words"));
  if (h.payload_bytes > limits.max_payload_bytes) {
    return fail(invalid_argument("a frame's payload of " + std::to_string(h.payload_bytes) + " bytes exceeds the limit"));
  }
  if (h.num_fds > limits.max_fds) return fail(invalid_argument("the frame has too many descriptors"));
  return h;
}

}  // namespace shoal::runtime
