// The output of one call, from a worker that marks it (scheduler/node/task_marks.h). An extension of messages.h.
#pragma once

#include "actors/wire/messages.h"

namespace shoal::actors {

// To a node, answered like kReadLog.
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
