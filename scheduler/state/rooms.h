// What nodes have free, and what they could ever hold: kept up to date as their rows change, so that to look costs what changed and not
// what there is.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "scheduler/state/placement.h"
#include "scheduler/state/rows.h"
#include "scheduler/state/table.h"

namespace shoal::scheduler {

inline bool takes_work(const rows::Node& n) {
  return n.row.state == actors::NodeState::kAlive && !n.away && n.row.duty() == actors::NodeDuty::kWorks;
}

class Rooms {
 public:
  using Nodes = Table<NodeId, rows::Node>;

  void refresh(const Nodes& nodes);

  // Of nodes that take work.
  const Room& free() const { return free_; }
  // For these: what asks for CPUs need not look at nodes that have none left.
  const Room& free_for(const std::vector<actors::Resources>& wants) const;
  // For what asks for nothing, and is work all the same: of the nodes that take work and have CPUs at all, free or not, `home` as long as
  // it has fewer processes than CPUs, or one with the fewest.
  std::optional<NodeId> quietest(NodeId home) const;
  // Of nodes that live and stay.
  const Room& capacity() const { return capacity_; }
  // The sum of that.
  const actors::Resources& all() const { return all_; }
  // Grows when there may be room for what had none before.
  std::uint64_t growth() const { return growth_; }

 private:
  void refresh(NodeId id, const rows::Node& node);
  void forget(NodeId id);
  void takes_no_work(NodeId id);
  void rank(NodeId id, std::optional<std::size_t> workers);

  Room free_, free_cpus_, capacity_;
  std::set<std::pair<std::size_t, NodeId>> by_workers_;
  std::map<NodeId, std::size_t> ranked_;  // the same, by node
  actors::Resources all_;
  std::uint64_t growth_ = 1;
};

}  // namespace shoal::scheduler
