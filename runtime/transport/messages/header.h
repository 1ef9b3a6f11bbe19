// The header of an operation, which a rank sends to each rank that takes part, before the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/transport/entry.h"

namespace shoal::runtime {

// The size up to which data travel within the header's message.
inline constexpr std::size_t kInlineBytes = 8 << 10;

// As it lies on the wire. All hosts of a group have one byte order: groups of mixed machines are refused when they exchange addresses.
struct Header {
  static constexpr std::size_t kLabelBytes = 64;

  std::uint8_t collective = 0, dtype = 0, op = 0, reserved = 0;
  std::int32_t root = -1;
  std::uint64_t sequence = 0, bytes = 0, counts = 0, step = 0;  // as in Entry
  std::uint64_t sent = 0;                                       // size of the data from the sender to the receiver
  std::uint32_t tag = 0;                                        // messages between two ranks only
  std::uint32_t inline_bytes = 0;                               // size of the data that follow in the same message
  char label[kLabelBytes] = {};

  static Header from_entry(const Entry& entry);
  Entry entry() const;
};
static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) == 120);

// The bytes of a header and the data in the same message.
std::vector<std::byte> encode(Header header, std::span<const std::byte> data);
// The header at the front of `message`. InvalidArgument for a malformed one, or if the message has another size than it announces.
Result<Header> decode(std::span<const std::byte> message);

// The error of an operation whose transfer failed, or received a message of another size than expected.
Error wrong_size(int sender);

}  // namespace shoal::runtime
