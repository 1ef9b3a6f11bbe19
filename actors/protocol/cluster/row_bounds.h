// Bounds of the head's rows. The head checks requests and reports against them before it stores a row (scheduler/state/bounds.h), and the
// readers of rows accept as much (actors/protocol/wire/convert.cc). So each stored row can be read, and fits a message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace shoal::actors {

struct RowBounds {
  // Bytes of a text that names a job, a class, a role, a host or an endpoint, and of the reason why an entry waits.
  static constexpr std::size_t kMaxText = 4 << 10;
  // Attributes of an actor, labels of a node, metadata of a job: pairs, and bytes with kPairBytes more for each pair.
  static constexpr std::size_t kPairBytes = 32, kMaxPairsBytes = 64 << 10, kMaxPairs = kMaxPairsBytes / kPairBytes;
  // The most resources of a node or a request, bytes of a resource's name, and units of an amount.
  static constexpr std::size_t kMaxResources = 1000, kMaxResourceName = 300;
  static constexpr std::int64_t kMaxUnits = std::int64_t{1} << 60;
  // Entries of resources that all processes of one submitted job request together.
  static constexpr std::size_t kMaxWants = 100'000;
  // Bytes of a row in a message, without its cause. A cause takes at most 330 KiB (runtime/wire/error_message.h).
  static constexpr std::size_t kMaxRow = 480 << 10;
  // Bytes of a stored record, which has a job's or gang's launch as well.
  static constexpr std::size_t kMaxRecord = 4 << 20;
};

// Bytes of attributes, labels or metadata, as RowBounds::kMaxPairsBytes counts them.
inline std::size_t pairs_bytes(const std::map<std::string, std::string>& pairs) {
  std::size_t out = 0;
  for (const auto& [name, value] : pairs) out += RowBounds::kPairBytes + name.size() + value.size();
  return out;
}

}  // namespace shoal::actors
