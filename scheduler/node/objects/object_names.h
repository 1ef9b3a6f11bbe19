// How this node's tables name objects: one of another node with its home, one of this node without a home. In messages every object has its
// home.
#pragma once

#include <vector>

#include "actors/protocol/cluster/object_key.h"
#include "storage/reference_table.h"

namespace shoal::scheduler {

class ObjectNames {
 public:
  using Object = storage::ReferenceTable::Object;

  NodeId self() const { return self_; }
  // Sets this node's id. Returns the id that it had before.
  NodeId start_as(NodeId self) { return std::exchange(self_, self); }

  Object object(const actors::ObjectKey& key) const { return {key.job, key.id, key.home == self_ ? NodeId() : key.home}; }
  actors::ObjectKey key(const Object& object) const { return {object.job, object.id, object.home ? object.home : self_}; }
  std::vector<Object> objects(const std::vector<actors::ObjectKey>& keys) const {
    std::vector<Object> out;
    for (const actors::ObjectKey& k : keys) out.push_back(object(k));
    return out;
  }
  std::vector<actors::ObjectKey> keys(const std::vector<Object>& objects) const {
    std::vector<actors::ObjectKey> out;
    for (const Object& o : objects) out.push_back(key(o));
    return out;
  }

 private:
  NodeId self_;
};

}  // namespace shoal::scheduler
