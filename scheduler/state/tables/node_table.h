// Nodes: connections, heartbeats, drains, and free resources.
//
// A node is alive until die(); it never comes back under its id. Free resources are the total without what workers, groups and placed jobs
// hold.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/wire/head_messages.h"
#include "scheduler/state/tables/resource_index.h"

namespace shoal::scheduler {

// The nodes that a request may use: a reference to the whole room, or a copy of a part.
class Allowed {
 public:
  explicit Allowed(const NodeResources* all) : all_(all) {}
  explicit Allowed(NodeResources some) : some_(std::move(some)) {}
  const NodeResources& operator*() const { return all_ != nullptr ? *all_ : some_; }
  const NodeResources* operator->() const { return &**this; }

 private:
  const NodeResources* all_ = nullptr;
  NodeResources some_;
};

class NodeTable : public Table<NodeId, rows::Node> {
 public:
  NodeTable() { watch(); }

  bool lives(NodeId id) const;

  // ---- transitions
  void join(const actors::RegisterNode& node, runtime::TimePoint now);
  // The node is back after a broken connection, or with a new head. It is kReporting until its next heartbeat.
  void join_again(const actors::RegisterNode& node, runtime::TimePoint now);
  // Returns true for the heartbeat that ends kReporting. Ignores unknown nodes.
  bool beat(NodeId id, runtime::TimePoint now);
  void lose_connection(NodeId id);
  void die(NodeId id) { edit(id).row.state = actors::NodeState::kDead; }
  // NotFound; InvalidArgument once the node was asked to leave.
  Result<void> schedule(const actors::SetNodeScheduling& wish, runtime::TimePoint now, std::int64_t unix_ms);
  void ask_to_leave(NodeId id) { scratch(id).leave_sent = true; }
  // Called on every tick. A head that stood still for more than `longest` (a slow disk, a slow machine) has unread heartbeats: the excess
  // does not count as silence.
  void tick(runtime::TimePoint now, runtime::Duration longest);
  std::vector<NodeId> silent(runtime::TimePoint now, runtime::Duration timeout) const;
  // Derives the second part of each restored row. Nodes are away until they join again.
  void restored(runtime::TimePoint now, std::int64_t unix_ms);

  // ---- resources
  actors::Resources& free(NodeId id) { return scratch(id).row.available; }
  void add_process(NodeId id) { ++scratch(id).workers; }
  void remove_process(NodeId id) { --scratch(id).workers; }
  const ResourceIndex& index() const;
  Load load() const;
  // The nodes of `room` that match.
  Allowed only(const NodeResources& room, const std::vector<actors::LabelMatch>& labels) const;
  Allowed only(const NodeResources& room, const actors::Where& where, const std::vector<actors::Resources>& wants) const;

  // ---- notes for pending entries
  // The node that `where` requires takes no new work. Empty if it does, or if no node is required.
  std::string unschedulable(const actors::Where& where) const;
  // The numbers of cordoned and draining nodes, to be appended to a reason.
  std::string unschedulable() const;

 private:
  mutable ResourceIndex index_;
  std::optional<runtime::TimePoint> last_tick_;
};

}  // namespace shoal::scheduler
