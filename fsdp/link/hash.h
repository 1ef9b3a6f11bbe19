// A fast hash of rows, by which a rank finds out if they have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace shoal::fsdp {

// `hash` continued over these bytes. A change of one word always changes the result, and a change of several words almost always.
inline std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t hash) {
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15ULL;
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 29;
  }
  for (; i < bytes.size(); ++i) hash = (hash ^ static_cast<std::uint64_t>(bytes[i])) * kPrime;
  return hash;
}

}  // namespace shoal::fsdp
