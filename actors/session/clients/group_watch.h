// Placement groups known to this process, and the futures that wait for them. Loop thread only.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "actors/cluster/rows.h"
#include "actors/value/call.h"

namespace shoal::actors {

class GroupWatch {
 public:
  // `value` once the group has all its bundles; otherwise the cause of its removal, or the error of its lookup. If !knows(group), the
  // caller first asks the head about it.
  ValueFuture ready(GroupId group, Value value);
  bool knows(GroupId group) const { return groups_.contains(group); }
  void expect(GroupId group) { groups_.try_emplace(group); }
  std::vector<GroupId> expected() const;

  // A report from the head.
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
  std::map<GroupId, Group> groups_;  // reports are still to come
};

}  // namespace shoal::actors
