// What an object is called in the whole cluster.
#pragma once

#include "runtime/core/id.h"

namespace shoal::actors {

// Of a random one: an id that no item of a stream has (storage/memory_table.h: of_stream).
constexpr ObjectId of_no_stream(ObjectId id) { return {id.value > 1 ? id.value >> 1 : 1}; }

struct ObjectKey {
  JobId job;
  ObjectId id;
  NodeId home = {};  // the node that has it, or will; what it is named by without
  auto operator<=>(const ObjectKey&) const = default;
};

}  // namespace shoal::actors
