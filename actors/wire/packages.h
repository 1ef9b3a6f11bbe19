// Folders that travel to hosts which lack them: zip files, kept by the head and named by what is in them. As messages.h, of which its
// methods are two.
#pragma once

#include <string>

#include "actors/wire/messages.h"

namespace shoal::actors {

// To the head, a PackagePart: it is to be kept, parts in order; without data only the question whether all of it is there. Answered with
// HasPackage.
inline constexpr auto kPutPackage = static_cast<Method>(41);
// To the head, a PackagePart without data: answered with the one that begins at its offset. NotFound.
inline constexpr auto kGetPackage = static_cast<Method>(42);

struct PackagePart {
  std::string name;
  std::uint64_t total = 0, offset = 0;
  std::string data;
  static constexpr std::size_t kMaxBytes = 512u << 10;                  // of data
  static constexpr std::uint64_t kMaxTotal = std::uint64_t{520} << 20;  // a folder of 500 MiB, and what a zip file adds
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
