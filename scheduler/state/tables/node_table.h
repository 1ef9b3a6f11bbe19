// Nodes: connections, heartbeats, drains, and free resources.
//
// A node is alive until die(), and never lives again under the same id. Its free resources are its total without what workers, groups and
// placed jobs hold.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "scheduler/state/tables/resource_index.h"

namespace shoal::scheduler {

// The free resources of the nodes that a request may use. It refers to those of all nodes, or owns a copy of a part.
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
  void die(NodeId id);
  // Returns NotFound for an unknown or dead node, InvalidArgument if the node was asked to leave already.
  Result<void> schedule(const actors::SetNodeScheduling& wish, runtime::TimePoint now, std::int64_t unix_ms);
  void set_leave_sent(NodeId id) { scratch(id).leave_sent = true; }
  // Called on every tick. If the last call is longer ago than `longest`, this head stood still (a slow disk, a slow machine), and
  // heartbeats may be unread. The excess, which it returns, does not count as a node's silence.
  runtime::Duration tick(runtime::TimePoint now, runtime::Duration longest);
  // The living nodes without a heartbeat for longer than `timeout`. Visits nodes only when the earliest of their heartbeats has become so
  // old.
  std::vector<NodeId> silent(runtime::TimePoint now, runtime::Duration timeout);
  // The living nodes that are cordoned or draining.
  const std::set<NodeId>& withheld() const { return withheld_; }
  // Computes the part of each restored row that is not stored (rows.h). Nodes are away until they join again.
  void restored(runtime::TimePoint now, std::int64_t unix_ms);

  // ---- resources
  actors::Resources& free(NodeId id) { return scratch(id).row.available; }
  void add_process(NodeId id) { ++scratch(id).workers; }
  void remove_process(NodeId id) { --scratch(id).workers; }
  const ResourceIndex& index() const;
  Load load() const;
  // The part of `room` on nodes with these labels.
  Allowed only(const NodeResources& room, const std::vector<actors::LabelMatch>& labels) const;
  Allowed only(const NodeResources& room, const actors::Where& where, const std::vector<actors::Resources>& wants) const;

  // ---- notes for pending entries
  // A text if the node that `where` requires takes no new work. Empty if that node takes work, or `where` requires no node.
  std::string unschedulable(const actors::Where& where) const;
  // How many nodes are cordoned and draining, as "; 2 nodes are draining", to append to the text why an entry waits. Empty if none are.
  std::string unschedulable() const;

 private:
  mutable ResourceIndex index_;
  std::optional<runtime::TimePoint> last_tick_;
  runtime::TimePoint oldest_beat_{};  // no living node's last heartbeat is older
  std::set<NodeId> withheld_;
};

}  // namespace shoal::scheduler
