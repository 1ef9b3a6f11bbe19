// What one call printed, of those of a worker that says so (scheduler/node/task_marks.h). As messages.h, of which its method is one.
#pragma once

#include "actors/wire/messages.h"

namespace shoal::actors {

// To a node, answered as ReadLog.
inline constexpr auto kReadTaskLog = static_cast<Method>(76);

struct ReadTaskLog {
  ReadLog log;
  WorkerId caller;  // the process that made the call
  std::uint64_t number = 0;
};

Bytes to_bytes(const ReadTaskLog& m);
template <>
Result<ReadTaskLog> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
