// Placement groups: their bundles, what is free in each, and their names.
//
// A group waits (PENDING), has all its bundles (CREATED), waits again for lost ones (RESCHEDULING), and is REMOVED once, which is final.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

class GroupTable : public Table<GroupId, rows::Group> {
 public:
  // A bundle that was just reserved or given up: its node, and the resources of it that no worker held.
  struct Bundle {
    NodeId node;
    actors::Resources size, free;
  };

  // The group's row; null if the group is unknown or removed.
  const rows::Group* living(GroupId id) const;
  const rows::Group* named(const std::string& name_space, const std::string& name) const;

  // ---- transitions
  // Adds a group. Returns InvalidArgument/NameTaken if a living group has this name.
  Result<void> request(const actors::GroupSpec& spec, std::uint64_t order);
  // Gives each bundle that has no node one of `nodes`, in their order. The group then is CREATED.
  std::vector<Bundle> reserve(GroupId id, const std::vector<NodeId>& nodes);
  // Gives up the bundles on a node that was lost.
  std::vector<Bundle> lose(GroupId id, NodeId node);
  std::vector<Bundle> remove(GroupId id, const Error& cause);
  actors::Resources& free(GroupId id, std::int32_t bundle) { return scratch(id).free.at(static_cast<std::size_t>(bundle)); }
  void explain(GroupId id, const std::string& why);

  // Computes the part of a restored row that is not stored (rows.h), and returns the group's bundles.
  std::vector<Bundle> restored(GroupId id);
  void forget_old(std::size_t max);

 private:
  std::map<std::pair<std::string, std::string>, GroupId> names_;  // (namespace, name)
  std::deque<GroupId> removed_;
};

// The resources of the group's bundles that have no node.
std::vector<actors::Resources> missing_bundles(const rows::Group& group);

}  // namespace shoal::scheduler
