// The request to read a log file of the session on a node's host.
#pragma once

#include <string>

#include "actors/protocol/wire/message.h"

namespace shoal::actors {

struct ReadLogFile {
  std::string name;              // a file's name; "": read the list of all names instead, one per line
  std::uint64_t tail_bytes = 0;  // read at most this many bytes, from the file's end
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name);
    SHOAL_FIELD(v.tail_bytes, TailBytes);
  }
};
SHOAL_MESSAGE(ReadLogFile, ReadLogFile);
SHOAL_METHOD(kReadLogFile, 139, Signature<ReadLogFile, InPayload<std::string>>);

}  // namespace shoal::actors
