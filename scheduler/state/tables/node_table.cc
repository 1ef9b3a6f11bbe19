#include "scheduler/state/tables/node_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::scheduler {

using actors::NodeScheduling;
using actors::NodeState;
using actors::Resources;
using rows::Link;
using rows::Node;

namespace {
constexpr std::uint64_t kLongestDrainMs = 10ull * 365 * 86'400'000;  // practically no deadline
}

bool NodeTable::lives(NodeId id) const {
  const auto it = find(id);
  return it != end() && it->second.row.state == NodeState::kAlive;
}

void NodeTable::join(const actors::RegisterNode& node, runtime::TimePoint now) {
  Node& n = add(node.id);
  n.row = {node.id, node.host, node.pid, NodeState::kAlive, node.endpoint, node.resources, node.resources, node.labels};
  n.last_beat = now;
}

void NodeTable::join_again(const actors::RegisterNode& node, runtime::TimePoint now) {
  Node& n = edit(node.id);
  n.row.pid = node.pid;
  n.row.endpoint = node.endpoint;
  n.last_beat = now;
  n.link = Link::kReporting;
}

bool NodeTable::beat(NodeId id, runtime::TimePoint now) {
  if (!contains(id)) return false;
  Node& n = scratch(id);
  n.last_beat = now;
  if (n.link != Link::kReporting) return false;
  n.link = Link::kConnected;
  return true;
}

void NodeTable::die(NodeId id) {
  edit(id).row.state = NodeState::kDead;
  withheld_.erase(id);
}

void NodeTable::lose_connection(NodeId id) {
  if (contains(id)) scratch(id).link = Link::kAway;
}

Result<void> NodeTable::schedule(const actors::SetNodeScheduling& wish, runtime::TimePoint now, std::int64_t unix_ms) {
  const auto it = find(wish.node);
  if (it == end()) return fail(not_found("no node " + to_string(wish.node)));
  if (it->second.row.state == NodeState::kDead) return fail(not_found("node " + to_string(wish.node) + " has left already"));
  if (it->second.leave_sent) return fail(invalid_argument("node " + to_string(wish.node) + " is leaving"));
  Node& node = edit(wish.node);
  const auto deadline = std::chrono::milliseconds(std::min(wish.deadline_ms, kLongestDrainMs));
  node.row.cordoned = wish.scheduling != NodeScheduling::kSchedulable;
  node.row.drain_until_unix_ms = wish.scheduling == NodeScheduling::kDraining ? unix_ms + deadline.count() : 0;
  node.drain_until = now + deadline;
  if (node.row.cordoned) {
    withheld_.insert(wish.node);
  } else {
    withheld_.erase(wish.node);
  }
  return {};
}

runtime::Duration NodeTable::tick(runtime::TimePoint now, runtime::Duration longest) {
  const auto still = last_tick_ ? std::max(runtime::Duration::zero(), now - *last_tick_ - longest) : runtime::Duration::zero();
  last_tick_ = now;
  if (still == runtime::Duration::zero()) return still;
  for (const auto& [id, node] : *this) {
    if (node.row.state == NodeState::kAlive) scratch(id).last_beat = std::min(now, node.last_beat + still);
  }
  return still;
}

std::vector<NodeId> NodeTable::silent(runtime::TimePoint now, runtime::Duration timeout) {
  std::vector<NodeId> out;
  if (now - oldest_beat_ <= timeout) return out;
  oldest_beat_ = now;
  for (const auto& [id, node] : *this) {
    if (node.row.state != NodeState::kAlive) continue;
    oldest_beat_ = std::min(oldest_beat_, node.last_beat);
    if (now - node.last_beat > timeout) out.push_back(id);
  }
  return out;
}

void NodeTable::restored(runtime::TimePoint now, std::int64_t unix_ms) {
  last_tick_ = now;  // nodes cannot join while many rows are restored: the time until the first tick must not count as their silence
  for (const auto& [id, node] : *this) {
    Node& n = scratch(id);
    n.row.available = n.row.total;
    n.last_beat = now;
    n.link = n.row.state == NodeState::kAlive ? Link::kAway : Link::kConnected;
    // The stored deadline is a time of the wall clock, the only one that two heads share.
    n.drain_until = now + std::chrono::milliseconds(std::max<std::int64_t>(0, n.row.drain_until_unix_ms - unix_ms));
    if (n.row.state == NodeState::kAlive && n.row.scheduling() != NodeScheduling::kSchedulable) withheld_.insert(id);
  }
}

const ResourceIndex& NodeTable::index() const {
  index_.refresh(*this);
  return index_;
}

Load NodeTable::load() const {
  Load out;
  for (const auto& [id, n] : *this) out[id] = n.workers;
  return out;
}

Allowed NodeTable::only(const NodeResources& room, const std::vector<actors::LabelMatch>& labels) const {
  if (labels.empty()) return Allowed(&room);
  NodeResources some;
  for (const auto& n : room) {
    if (matches(at(n.first).row.labels, labels)) some.insert(some.end(), n);
  }
  return Allowed(std::move(some));
}

Allowed NodeTable::only(const NodeResources& room, const actors::Where& where, const std::vector<Resources>& wants) const {
  if (!where.node) return only(room, where.labels);
  const auto wished = [&](const NodeResources& from) {
    const auto it = from.find(where.node);
    if (it == from.end() || !matches(at(where.node).row.labels, where.labels)) return NodeResources();
    return NodeResources{*it};
  };
  if (where.soft && !place(wants, wished(where.at_once ? room : index().capacity()))) return only(room, where.labels);
  return Allowed(wished(room));
}

std::string NodeTable::unschedulable(const actors::Where& where) const {
  const auto node = find(where.node);
  if (!where.node || where.soft || node == end() || node->second.row.scheduling() == NodeScheduling::kSchedulable) return "";
  return fmt::format("has to be on node {}, which is {} and takes no new work", to_string(where.node),
                     node->second.row.scheduling() == NodeScheduling::kDraining ? "draining" : "cordoned");
}

std::string NodeTable::unschedulable() const {
  std::size_t cordoned = 0, draining = 0;
  for (const NodeId id : withheld_) {
    const bool drains = at(id).row.scheduling() == NodeScheduling::kDraining;
    ++(drains ? draining : cordoned);
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
