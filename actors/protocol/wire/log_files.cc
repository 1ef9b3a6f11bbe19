#include "actors/protocol/wire/log_files.h"

#include "actors/protocol/wire/log_files.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

Bytes to_bytes(const ReadLogFile& v) {
  return runtime::write<wire::ReadLogFile>([&](wire::ReadLogFile::Builder m) {
    m.setName(v.name);
    m.setTailBytes(v.tail_bytes);
  });
}

template <>
Result<ReadLogFile> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::ReadLogFile>(
      bytes, [](wire::ReadLogFile::Reader m) { return ReadLogFile{runtime::text(m.getName()), m.getTailBytes()}; });
}

}  // namespace shoal::actors
