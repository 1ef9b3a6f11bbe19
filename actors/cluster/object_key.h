// What an object is called in the whole cluster.
#pragma once

#include "runtime/core/id.h"

namespace shoal::actors {

struct ObjectKey {
  JobId job;
  ObjectId id;
  NodeId home = {};  // the node that has it, or will; what it is named by without
  auto operator<=>(const ObjectKey&) const = default;
};

}  // namespace shoal::actors
