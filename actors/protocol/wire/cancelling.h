// The request to cancel the call that makes an object, in the process that published the object.
#pragma once

#include "actors/protocol/cluster/object_key.h"
#include "actors/protocol/wire/message.h"
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
SHOAL_MESSAGE(CancelResult, CancelResult);
// Sent to a node, which forwards it to the object's home. The home forwards it to the process that made the call. The process cancels the
// call and answers, with an error if it refuses. Succeeds if there is nothing left to cancel.
SHOAL_METHOD(kCancelResult, 77, Signature<CancelResult>);

}  // namespace shoal::actors
