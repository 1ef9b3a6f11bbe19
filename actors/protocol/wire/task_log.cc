#include "actors/protocol/wire/task_log.h"

#include "actors/protocol/wire/inspection.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

Bytes to_bytes(const ReadTaskLog& v) {
  return runtime::write<wire::ReadTaskLog>([&](wire::ReadTaskLog::Builder m) {
    m.setWorker(v.log.worker.value);
    m.setStream(v.log.stream);
    m.setTailBytes(v.log.tail_bytes);
    m.setCaller(v.caller.value);
    m.setNumber(v.number);
  });
}

template <>
Result<ReadTaskLog> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::ReadTaskLog>(bytes, [](wire::ReadTaskLog::Reader m) {
    return ReadTaskLog{{WorkerId{m.getWorker()}, m.getStream(), m.getTailBytes()}, WorkerId{m.getCaller()}, m.getNumber()};
  });
}

}  // namespace shoal::actors
