// Processes: those that the head started, and those that connected to a node by themselves (drivers, ranks under torchrun).
//
// A worker starts, runs and exits; it never leaves kExited. An exited worker holds nothing.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "actors/protocol/wire/head_messages.h"
#include "actors/protocol/wire/node_messages.h"
#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

// The place that a worker's resources are taken from: a node, or a bundle on it.
struct Site {
  NodeId node;
  std::int32_t bundle = -1;  // index in the placement group; -1: no group
};

class WorkerTable : public Table<WorkerId, rows::Worker> {
 public:
  // The worker's row; null if the worker is unknown or has exited.
  const rows::Worker* living(WorkerId id) const;

  // ---- transitions
  void start(const actors::StartWorker& message, const Site& site, GroupId group, const actors::Resources& held);
  void attach(NodeId node, const actors::WorkerUpdate& update);
  void report(WorkerId id, std::int32_t pid);
  void set_state(WorkerId id, actors::WorkerState state);
  void set_actor(WorkerId id, ActorId actor) { edit(id).actor = actor; }
  void announce_end(WorkerId id);
  void move(WorkerId id) { scratch(id).moving = true; }
  // lend() lends the worker's CPUs, and take_back() ends that. Both return these CPUs.
  actors::Resources lend(WorkerId id);
  actors::Resources take_back(WorkerId id);
  // Returns what the worker held.
  actors::Resources exit(WorkerId id, const std::optional<Error>& cause);

  // ---- reports of a node that joined again
  void expect_reports(NodeId node);
  std::vector<WorkerId> unreported(NodeId node) const;

  void restored();
  void forget_old(std::size_t max);

 private:
  std::deque<WorkerId> ended_;
};

}  // namespace shoal::scheduler
