// Log files of a session on a node's host.
#pragma once

#include <string>

#include "actors/wire/from_bytes.h"

namespace shoal::actors {

struct ReadLogFile {
  std::string name;              // "": the names of all files, a line each
  std::uint64_t tail_bytes = 0;  // the last bytes, at most so many
};

Bytes to_bytes(const ReadLogFile& m);
template <>
Result<ReadLogFile> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
