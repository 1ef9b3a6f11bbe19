// Placement groups of which this process has heard, and who waits until one is there. Loop thread only.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/session/actor_calls.h"

namespace shoal::actors {

class GroupWatch {
 public:
  // `value` once the group has all its bundles; its removal's cause, or why nothing is known of it, otherwise. A group that is not known
  // yet has to be asked for (knows).
  ValueFuture ready(GroupId group, Value value);
  bool knows(GroupId group) const { return groups_.contains(group); }
  void expect(GroupId group) { groups_.try_emplace(group); }
  std::vector<GroupId> expected() const;

  // News from the head.
  void updated(const GroupRow& row);
  void unknown(GroupId group, const Error& cause);

 private:
  struct Waiting {
    runtime::Promise<Value> promise;
    Value value;
  };
  struct Group {
    bool created = false;
    std::vector<Waiting> waiting;
  };
  std::map<GroupId, Group> groups_;  // of which something is still to be told
};

}  // namespace shoal::actors
