// Nodes that take no new work (cordoned), and those that leave in order (drained).
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::NodeScheduling;
using actors::NodeState;
using actors::WorkerState;

namespace {
constexpr std::uint64_t kLongestDrainMs = 10ull * 365 * 86'400'000;  // practically no deadline
}

Result<void> ClusterState::scheduling_set(const actors::SetNodeScheduling& wish) {
  const auto it = nodes_.find(wish.node);
  if (it == nodes_.end()) return fail(not_found("no node " + to_string(wish.node)));
  const Node& known = it->second;
  if (known.row.state == NodeState::kDead) return fail(not_found("node " + to_string(wish.node) + " has left already"));
  if (known.leave_sent) return fail(invalid_argument("node " + to_string(wish.node) + " is leaving"));
  Node& node = nodes_.edit(wish.node);
  const auto deadline = std::chrono::milliseconds(std::min(wish.deadline_ms, kLongestDrainMs));
  node.row.cordoned = wish.scheduling != NodeScheduling::kSchedulable;
  node.row.drain_until_unix_ms = wish.scheduling == NodeScheduling::kDraining ? unix_ms_ + deadline.count() : 0;
  node.drain_until = now_ + deadline;
  place_pending();
  drain_nodes();
  return {};
}

void ClusterState::drain_nodes() {
  for (const auto& [id, node] : nodes_) {
    if (node.row.state == NodeState::kDead || node.row.scheduling() != NodeScheduling::kDraining || node.leave_sent) continue;
    move_actors(id);
    const bool busy = std::any_of(workers_.begin(), workers_.end(), [&, node_id = id](const auto& w) {
      return w.second.row.node == node_id && w.second.row.state != WorkerState::kExited;
    });
    if (busy && now_ < node.drain_until) continue;
    nodes_.scratch(id).leave_sent = true;
    act(EndNodeOn{id});
  }
}

// Ends restartable actors once another node has room for them, so that they restart there.
void ClusterState::move_actors(NodeId node) {
  NodeResources elsewhere = resource_index().free();
  const auto take_place = [&](const Gang& gang) {
    const auto nodes = place(gang.wants, *only(elsewhere, gang.spec.where, gang.wants));
    if (nodes) elsewhere.at(nodes->front()) -= gang.wants.front();
    return nodes.has_value();
  };
  std::vector<WorkerId> staying;
  for (const auto& [id, w] : workers_) {
    const auto actor = actors_.find(w.actor);
    if (w.row.node != node || w.row.state == WorkerState::kExited || actor == actors_.end()) continue;
    const auto gang = gangs_.find(actor->second.gang);
    if (actor->second.state == ActorState::kDead || gang == gangs_.end() || gang->second.spec.where.group) continue;
    if (w.moving) {
      (void)take_place(gang->second);  // room for an actor on its way
    } else if (actor->second.state == ActorState::kAlive && !w.leaving && may_restart(actor->second)) {
      staying.push_back(id);
    }
  }
  for (const WorkerId id : staying) {
    Worker& w = workers_.scratch(id);
    if (!take_place(gangs_.at(actors_.at(w.actor).gang))) continue;
    w.moving = true;
    act(StopWorkerOn{node, {id, SIGKILL, 0}});
  }
}

// A note that the node `where` requires takes no new work. Empty if it does, or if no node is required.
std::string ClusterState::unschedulable(const actors::Where& where) const {
  const auto node = nodes_.find(where.node);
  if (!where.node || where.soft || node == nodes_.end() || node->second.row.scheduling() == NodeScheduling::kSchedulable) return "";
  return fmt::format("has to be on node {}, which is {} and takes no new work", to_string(where.node),
                     node->second.row.scheduling() == NodeScheduling::kDraining ? "draining" : "cordoned");
}

// A note on cordoned and draining nodes, appended to a pending entry's reason.
std::string ClusterState::unschedulable() const {
  std::size_t cordoned = 0, draining = 0;
  for (const auto& [id, n] : nodes_) {
    if (n.row.state == NodeState::kDead) continue;
    cordoned += n.row.scheduling() == NodeScheduling::kCordoned;
    draining += n.row.scheduling() == NodeScheduling::kDraining;
  }
  std::string out;
  const auto say = [&](std::size_t count, const char* what) {
    if (count > 0) out += fmt::format("; {} node{} {}", count, count == 1 ? " is" : "s are", what);
  };
  say(cordoned, "cordoned");
  say(draining, "draining");
  return out;
}

}  // namespace shoal::scheduler
