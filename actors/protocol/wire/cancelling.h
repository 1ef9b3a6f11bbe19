// The request to cancel the call that makes an object, in the process that published the object.
#pragma once

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/wire/message_bytes.h"
#include "runtime/core/id.h"

namespace shoal::actors {

struct CancelResult {
  ObjectKey object;
  WorkerId owner;
  bool recursive = true;
  bool force = false;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.object.job, Job);
    SHOAL_FIELD(v.object.id, Object);
    SHOAL_FIELD(v.object.home, Home);
    SHOAL_FIELD(v.owner, Owner);
    SHOAL_FIELD(v.recursive, Recursive);
    SHOAL_FIELD(v.force, Force);
  }
};

}  // namespace shoal::actors
