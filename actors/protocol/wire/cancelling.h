// The request to cancel the call that makes an object, in the process that published the object.
#pragma once

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/wire/from_bytes.h"
#include "runtime/core/id.h"

namespace shoal::actors {

struct CancelResult {
  ObjectKey object;
  WorkerId owner;
  bool recursive = true;
  bool force = false;
};

Bytes to_bytes(const CancelResult& m);
template <>
Result<CancelResult> from_bytes(const Bytes& bytes);

}  // namespace shoal::actors
