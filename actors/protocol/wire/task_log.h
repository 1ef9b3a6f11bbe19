// The request for the output of one call, which its worker has marked (scheduler/node/logs/task_marks.h).
#pragma once

#include "actors/protocol/wire/node_messages.h"

namespace shoal::actors {

struct ReadTaskLog {
  ReadLog log;
  WorkerId caller;  // the process that made the call
  std::uint64_t number = 0;
};

Bytes to_bytes(const ReadTaskLog& m);
template <>
Result<ReadTaskLog> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
