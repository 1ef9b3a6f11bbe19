// Folders sent to hosts that lack them: zip files that the head keeps, named by their contents. An extension of messages.h.
#pragma once

#include <string>

#include "actors/wire/messages.h"

namespace shoal::actors {

// A PackagePart for the head to keep, parts in order. Without data it only asks if the package is complete. Answered with HasPackage.
inline constexpr auto kPutPackage = static_cast<Method>(41);
// A PackagePart without data to the head, answered with the part that begins at its offset. NotFound.
inline constexpr auto kGetPackage = static_cast<Method>(42);

struct PackagePart {
  std::string name;
  std::uint64_t total = 0, offset = 0;
  std::string data;
  static constexpr std::size_t kMaxBytes = 512u << 10;                  // bound of `data`
  static constexpr std::uint64_t kMaxTotal = std::uint64_t{520} << 20;  // a folder of 500 MiB, and the overhead of a zip file
};
struct HasPackage {
  bool whole = false;
};

Bytes to_bytes(const PackagePart& m);
Bytes to_bytes(const HasPackage& m);
template <>
Result<PackagePart> from_bytes(const Bytes& bytes);
template <>
Result<HasPackage> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
