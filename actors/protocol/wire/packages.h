// Folders sent to hosts that lack them: the head keeps each as a zip file, which is named by its contents.
#pragma once

#include <string>

#include "actors/protocol/wire/message.h"

namespace shoal::actors {

struct PackagePart {
  std::string name;
  std::uint64_t total = 0, offset = 0;
  std::string data;
  static constexpr std::size_t kMaxBytes = 512u << 10;                  // limit on `data` of one part
  static constexpr std::uint64_t kMaxTotal = std::uint64_t{520} << 20;  // limit on a zip file: a folder of 500 MiB, and what zip adds
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.total, Total);
    SHOAL_FIELD(v.offset, Offset);
    SHOAL_FIELD(v.data, Data);
  }
};
SHOAL_MESSAGE(PackagePart, PackagePart);
struct HasPackage {
  bool whole = false;
  static void fields(auto& v, auto io) { SHOAL_FIELD(v.whole, Whole); }
};
SHOAL_MESSAGE(HasPackage, HasPackage);

// To the head, a part to store. Parts come in order; a part without data asks whether the package is complete.
SHOAL_METHOD(kPutPackage, 41, Signature<PackagePart, HasPackage>);
// To the head, a part without data: answered with the part that begins at its offset, or with NotFound.
SHOAL_METHOD(kGetPackage, 42, Signature<PackagePart, PackagePart>);

}  // namespace shoal::actors
