// Placement groups known to this process, and the futures that wait for them. Loop thread only.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "actors/protocol/cluster/rows.h"
#include "actors/value/call.h"

namespace shoal::actors {

class GroupWatch {
 public:
  // Returns a future of `value`, which is ready once the group has all its bundles. It fails with the cause of the group's removal, or with
  // the error of its lookup. If !knows(group), the caller first asks the head about the group.
  ValueFuture ready(GroupId group, Value value);
  bool knows(GroupId group) const { return groups_.contains(group); }
  void expect(GroupId group) { groups_.try_emplace(group); }
  std::vector<GroupId> expected() const;

  // The head has sent the group's row.
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
  std::map<GroupId, Group> groups_;  // groups of which the head still sends changes
};

}  // namespace shoal::actors
