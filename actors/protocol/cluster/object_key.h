// The cluster-wide name of an object.
#pragma once

#include "runtime/core/id.h"

namespace shoal::actors {

struct ObjectKey {
  JobId job;
  ObjectId id;
  NodeId home = {};  // the node that has the object, or will have it
  auto operator<=>(const ObjectKey&) const = default;
};

}  // namespace shoal::actors
