// The cluster-wide name of an object.
#pragma once

#include "actors/protocol/cluster/fields.h"
#include "runtime/core/id.h"

namespace shoal::actors {

struct ObjectKey {
  JobId job;
  ObjectId id;
  NodeId home = {};  // the node that has the object, or will have it
  auto operator<=>(const ObjectKey&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.job, Job);
    SHOAL_FIELD(v.id, Id);
    SHOAL_FIELD(v.home, Home);
  }
};

}  // namespace shoal::actors
