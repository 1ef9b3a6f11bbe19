// The header of a part (LinkMethod::kPart) announces in its id the message that travels in parts. So its receiver can refuse it by
// its method before it takes memory.
#pragma once

#include <cstdint>

#include "runtime/net/frame.h"

namespace shoal::runtime {

// Bits 0 to 39: the payload's total bytes; 40 to 55: the method; 56 to 63: the kind.
struct PartOf {
  static constexpr int kMethodBit = 40, kKindBit = 56;
  static constexpr std::uint64_t kMaxTotal = (std::uint64_t{1} << kMethodBit) - 1;

  std::uint64_t total = 0;
  std::uint16_t method = 0;
  FrameKind kind = FrameKind::kNotice;

  std::uint64_t encode() const { return total | std::uint64_t{method} << kMethodBit | static_cast<std::uint64_t>(kind) << kKindBit; }
  static PartOf decode(std::uint64_t id) {
    return {id & kMaxTotal, static_cast<std::uint16_t>(id >> kMethodBit), static_cast<FrameKind>(id >> kKindBit)};
  }
  bool operator==(const PartOf&) const = default;
};

}  // namespace shoal::runtime
