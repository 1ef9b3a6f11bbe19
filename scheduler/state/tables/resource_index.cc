#include "scheduler/state/tables/resource_index.h"

#include <algorithm>

namespace shoal::scheduler {

using actors::Resources;

void ResourceIndex::refresh(const Nodes& nodes) {
  for (const NodeId id : nodes.take_touched()) {
    if (const auto it = nodes.find(id); it != nodes.end()) {
      refresh(id, it->second);
    } else {
      forget(id);
    }
  }
}

void ResourceIndex::refresh(NodeId id, const rows::Node& node) {
  const bool indexed = node.row.state == actors::NodeState::kAlive && node.row.scheduling() != actors::NodeScheduling::kDraining;
  if (!indexed) return forget(id);
  if (capacity_.try_emplace(id, node.row.total).second) {  // a node's total never changes
    ++growth_;
    ++capacity_changes_;
    all_ += node.row.total;
  }
  if (!takes_work(node)) return takes_no_work(id);
  const auto before = free_.find(id);
  if (before == free_.end() || !node.row.available.fits_in(before->second)) ++growth_;
  free_.insert_or_assign(id, node.row.available);
  if (node.row.available.units("CPU") > 0) {
    free_cpus_.insert_or_assign(id, node.row.available);
  } else {
    free_cpus_.erase(id);
  }
  rank(id, node.row.total.units("CPU") > 0 ? std::optional(node.workers) : std::nullopt);
}

void ResourceIndex::takes_no_work(NodeId id) {
  free_.erase(id);
  free_cpus_.erase(id);
  rank(id, {});
}

void ResourceIndex::rank(NodeId id, std::optional<std::size_t> workers) {
  if (const auto it = ranked_.find(id); it != ranked_.end()) {
    if (workers == it->second) return;
    by_workers_.erase({it->second, id});
    ranked_.erase(it);
  }
  if (!workers) return;
  by_workers_.emplace(*workers, id);
  ranked_.emplace(id, *workers);
}

std::optional<NodeId> ResourceIndex::quietest(NodeId home) const {
  const auto at = ranked_.find(home);
  if (at != ranked_.end() && static_cast<std::int64_t>(at->second) * Resources::kUnit < capacity_.at(home).units("CPU")) return home;
  return by_workers_.empty() ? std::nullopt : std::optional(by_workers_.begin()->second);
}

void ResourceIndex::forget(NodeId id) {
  if (const auto it = capacity_.find(id); it != capacity_.end()) {
    all_ -= it->second;
    capacity_.erase(it);
    ++capacity_changes_;
    ++growth_;  // gangs that preferred this node may go to another one now
  }
  takes_no_work(id);
}

const NodeResources& ResourceIndex::free_for(const std::vector<Resources>& wants) const {
  const bool all = std::all_of(wants.begin(), wants.end(), [](const Resources& w) { return w.units("CPU") > 0; });
  return all ? free_cpus_ : free_;
}

}  // namespace shoal::scheduler
