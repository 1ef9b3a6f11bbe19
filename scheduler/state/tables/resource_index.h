// The free and total resources of all nodes, updated as rows change. So an event costs time only for what it changed, not for all nodes.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "scheduler/state/placement/placement.h"
#include "scheduler/state/placement/resource_sums.h"
#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

inline bool takes_work(const rows::Node& n) {
  return n.row.state == actors::NodeState::kAlive && n.link != rows::Link::kAway &&
         n.row.scheduling() == actors::NodeScheduling::kSchedulable;
}

class ResourceIndex {
 public:
  using Nodes = Table<NodeId, rows::Node>;

  void refresh(const Nodes& nodes);

  // Free resources of the nodes that take work.
  const NodeResources& free() const { return free_; }
  // Like free(), without nodes that have no free CPU if all of `wants` ask for CPUs.
  const NodeResources& free_for(const std::vector<actors::Resources>& wants) const;
  // The node for an actor that asks for no resources, among those that take work and have CPUs, free or not. It is `home`, the node of the
  // process that asks, while that has fewer processes than CPUs. Otherwise it is one with the fewest processes.
  std::optional<NodeId> quietest(NodeId home) const;
  // Total resources of living nodes that are not draining.
  const NodeResources& capacity() const { return capacity_; }
  // The sum of capacity() over all nodes.
  const ResourceSums& all() const { return all_; }
  // A counter that grows whenever an entry of the queue that did not fit may fit now. While it is unchanged, such entries need no new look.
  std::uint64_t growth() const { return growth_; }
  // A counter that grows whenever capacity() changes.
  std::uint64_t capacity_changes() const { return capacity_changes_; }

 private:
  void refresh(NodeId id, const rows::Node& node);
  void forget(NodeId id);
  void takes_no_work(NodeId id);
  void rank(NodeId id, std::optional<std::size_t> workers);

  NodeResources free_, free_cpus_, capacity_;
  std::set<std::pair<std::size_t, NodeId>> by_workers_;
  std::map<NodeId, std::size_t> ranked_;  // the number of processes of each node in by_workers_
  ResourceSums all_;
  std::uint64_t growth_ = 1, capacity_changes_ = 1;
};

}  // namespace shoal::scheduler
