// The request for the output of one call, which its worker has marked (scheduler/node/logs/task_marks.h).
#pragma once

#include "actors/protocol/wire/node_messages.h"

namespace shoal::actors {

struct ReadTaskLog {
  ReadLog log;
  WorkerId caller;  // the process that made the call
  std::uint64_t number = 0;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.log.worker, Worker);
    SHOAL_FIELD(v.log.stream, Stream);
    SHOAL_FIELD(v.log.tail_bytes, TailBytes);
    SHOAL_FIELD(v.caller, Caller);
    SHOAL_FIELD(v.number, Number);
  }
};
SHOAL_MESSAGE(ReadTaskLog, ReadTaskLog);
SHOAL_METHOD(kReadTaskLog, 76, Signature<ReadTaskLog, InPayload<std::string>>);

}  // namespace shoal::actors
