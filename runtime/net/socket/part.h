// The header of a part (LinkMethod::kPart) announces in its id the message that travels in parts. So the receiver can refuse that message
// by its method before it takes memory.
#pragma once

#include <cstdint>

#include "runtime/net/frame.h"
#include "runtime/net/hello.h"

namespace shoal::runtime {

// Bits 0 to 39: the payload's total bytes; 40 to 55: the method; 56 to 63: the kind. In wire version 1 the id is the total alone.
struct PartOf {
  static constexpr int kMethodBit = 40, kKindBit = 56;
  static constexpr std::uint64_t kMaxTotal = (std::uint64_t{1} << kMethodBit) - 1;

  std::uint64_t total = 0;
  std::uint16_t method = 0;
  FrameKind kind = FrameKind::kNotice;

  static bool has_method(std::uint16_t version) { return version >= kPartsHaveMethods; }
  std::uint64_t encode(std::uint16_t version) const {
    if (!has_method(version)) return total;
    return total | std::uint64_t{method} << kMethodBit | static_cast<std::uint64_t>(kind) << kKindBit;
  }
  static PartOf decode(std::uint64_t id, std::uint16_t version) {
    if (!has_method(version)) return {id};
    return {id & kMaxTotal, static_cast<std::uint16_t>(id >> kMethodBit), static_cast<FrameKind>(id >> kKindBit)};
  }
};

}  // namespace shoal::runtime
