#include "actors/protocol/wire/cancelling.h"

#include "actors/protocol/wire/cancelling.capnp.h"
#include "runtime/wire/codec.h"

namespace shoal::actors {

Bytes to_bytes(const CancelResult& v) {
  return runtime::write<wire::CancelResult>([&](wire::CancelResult::Builder m) {
    m.setJob(v.object.job.value);
    m.setObject(v.object.id.value);
    m.setHome(v.object.home.value);
    m.setOwner(v.owner.value);
    m.setRecursive(v.recursive);
    m.setForce(v.force);
  });
}

template <>
Result<CancelResult> from_bytes(const Bytes& bytes) {
  return runtime::read<wire::CancelResult>(bytes, [](wire::CancelResult::Reader m) {
    const ObjectKey object{JobId{m.getJob()}, ObjectId{m.getObject()}, NodeId{m.getHome()}};
    return CancelResult{object, WorkerId{m.getOwner()}, m.getRecursive(), m.getForce()};
  });
}

}  // namespace shoal::actors
