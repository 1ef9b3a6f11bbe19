// Files of a session's logs on the host of a node. As messages.h, of which its method is one.
#pragma once

#include <string>

#include "actors/wire/messages.h"

namespace shoal::actors {

// To a node; answered with text as payload.
inline constexpr auto kReadLogFile = static_cast<Method>(139);

struct ReadLogFile {
  std::string name;              // "": their names, a line each
  std::uint64_t tail_bytes = 0;  // so many at most, the last ones
};

Bytes to_bytes(const ReadLogFile& m);
template <>
Result<ReadLogFile> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
