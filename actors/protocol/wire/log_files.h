// The request to read a log file of the session on a node's host.
#pragma once

#include <string>

#include "actors/protocol/wire/from_bytes.h"

namespace shoal::actors {

struct ReadLogFile {
  std::string name;              // a file's name; "": read the list of all names instead, one per line
  std::uint64_t tail_bytes = 0;  // read at most this many bytes, from the file's end
};

Bytes to_bytes(const ReadLogFile& m);
template <>
Result<ReadLogFile> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
