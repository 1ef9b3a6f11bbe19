// The bytes that processes of a further host have appended to the run's folder there. The first host writes them into its own folder.
#pragma once

#include <string>
#include <vector>

#include "actors/protocol/wire/message.h"

namespace shoal::actors {

struct RunFilePart {
  std::string process;  // a folder below `processes`
  std::string file;
  std::uint64_t offset = 0, size = 0;  // the file ends behind these bytes: a part that comes twice changes nothing
  bool removed = false;                // the file is gone, and the other fields have no meaning
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.process, Process);
    SHOAL_FIELD(v.file, File);
    SHOAL_FIELD(v.offset, Offset);
    SHOAL_FIELD(v.size, Size);
    SHOAL_FIELD(v.removed, Removed);
  }
};

// The payload has the bytes of all parts, in their order.
struct RunFiles {
  std::uint64_t sender = 0;  // random: a host keeps it when it connects again
  std::vector<RunFilePart> parts;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.sender, Sender);
    SHOAL_FIELD(v.parts, Parts);
  }
};
SHOAL_MESSAGE(RunFiles, RunFiles);
// Answered by `shoal run` on a run's first host, once it has written the parts in the payload.
SHOAL_METHOD(kRunFiles, 141, Signature<WithExtras<RunFiles>>);

}  // namespace shoal::actors
