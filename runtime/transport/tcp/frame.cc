#include "runtime/transport/tcp/frame.h"

#include <cstring>

namespace shoal::runtime {

namespace {

constexpr std::uint32_t kMagic = 0x53484c46;  // also shows the byte order

// As it lies on the wire. Ranks of different byte orders refuse each other when they exchange addresses.
struct Wire {
  std::uint32_t magic;
  std::uint8_t channel, departs;
  std::uint16_t reserved;
  std::uint32_t epoch, bytes;
  std::uint64_t sequence, offset, total;
};
static_assert(sizeof(Wire) == Frame::kBytes);

}  // namespace

void encode(const Frame& frame, std::span<std::byte, Frame::kBytes> out) {
  const Wire wire{
      kMagic,     static_cast<std::uint8_t>(frame.channel), frame.departs, 0, frame.epoch, frame.bytes, frame.sequence, frame.offset,
      frame.total};
  std::memcpy(out.data(), &wire, sizeof wire);
}

Result<Frame> decode_frame(std::span<const std::byte, Frame::kBytes> in) {
  Wire wire;
  std::memcpy(&wire, in.data(), sizeof wire);
  const bool known = wire.magic == kMagic && wire.channel < kNumChannels && wire.departs <= 1 && wire.reserved == 0;
  const bool bounded = wire.bytes <= Frame::kMaxPiece && wire.total <= Frame::kMaxMessage && wire.offset <= wire.total &&
                       wire.bytes <= wire.total - wire.offset && (wire.bytes > 0 || wire.total == 0);
  if (!known || !bounded) return fail(data_loss("a malformed frame arrived").with_reason("MalformedFrame"));
  Frame out;
  out.channel = static_cast<MessageLayer::Channel>(wire.channel);
  out.departs = wire.departs == 1;
  out.epoch = wire.epoch;
  out.bytes = wire.bytes;
  out.sequence = wire.sequence;
  out.offset = wire.offset;
  out.total = wire.total;
  return out;
}

}  // namespace shoal::runtime
