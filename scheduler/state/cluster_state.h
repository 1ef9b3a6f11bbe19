// The head's decisions as a pure state machine: events in, actions out; no I/O, no clock, no thread.
//
// The head (scheduler/head) passes it the time and every event, and performs its actions in order. Identifiers come from the given Random,
// so a seed and a list of events reproduce the same actions. The events are in events.h, the actions in actions.h, the tables in parts.h.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "scheduler/state/events.h"
#include "scheduler/state/parts.h"
#include "scheduler/state/set_aside.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

class ClusterState {
 public:
  using Options = StateOptions;

  ClusterState(Options options, runtime::Random& random) : parts_{.turn = {options, random}} {}

  // Sets the time of the events that follow.
  void advance(runtime::TimePoint now, std::int64_t unix_ms) {
    parts_.turn.now = now;
    parts_.turn.unix_ms = unix_ms;
  }
  // Decides what one event of events.h does, and returns the answer to its request.
  template <class Event>
  auto step(const Event& event) {
    return on(parts_, event);
  }
  // The actions that the events since the last call caused, in order.
  std::vector<Action> take_actions() { return std::exchange(parts_.turn.actions, {}); }

  // ---- stored state
  // take_changes() returns the rows changed since its last call, to be stored before the actions are performed. change_again() marks rows
  // that could not be stored.
  bool changed() const;
  std::vector<Record> take_changes();
  void change_again(const std::vector<Record>& records);
  std::vector<Record> all_records() const;
  // Continues from stored rows, before any event. Nodes are away until they join again; workers that they do not report then have ended.
  // A row that cannot be decoded, contradicts others or is missing is set aside: what depends on it ends with DataLoss, the rest goes on.
  void restore(const std::vector<Record>& records);
  // The rows that restore() set aside.
  const std::vector<SetAside>& set_aside() const { return set_aside_; }

  // ---- queries
  // A page of rows ordered by id, after `request.after`.
  actors::ListReply list(const actors::ListRequest& request) const;
  actors::ClusterStatus status() const;
  actors::ClusterStatus resources(JobId requester) const;  // without the parts of status() that visit every row
  // Returns true if a request waits that goes before this job's workers of remote functions, and would fit in their place (queue.h).
  bool wanted_back(JobId job) const;
  // Rows by state, and resources by node.
  std::vector<actors::MetricFamily> metrics() const;
  const actors::ActorRow* actor(ActorId id) const;
  // The row of the actor that this worker is to make, and its creation spec. Returns NotFound if there is none.
  Result<actors::FoundActor> creation_spec(WorkerId worker) const;
  // Returns those packages whose names are in the environment of a living or waiting gang or job.
  std::set<std::string> mentioned(const std::set<std::string>& packages) const;
  // The living actor of this name. Returns NotFound if there is none.
  Result<actors::FoundActor> find(const actors::FindActor& request) const { return find_actor(parts_, request); }
  const actors::JobRow* job(JobId id) const;
  const actors::GroupRow* group(GroupId id) const;
  // The living placement group of this name. Returns NotFound if there is none.
  Result<actors::GroupRow> find_group(const actors::FindActor& request) const;
  const actors::NodeRow* node(NodeId id) const;
  std::vector<NodeId> alive_nodes() const;
  // Nodes that have, or had, workers of the job.
  std::set<NodeId> nodes_of(JobId job) const;

  // Aborts if resources taken and free do not add up to a node's total, or if rows contradict each other. For tests and the simulation.
  void check_invariants() const;
  // How often events so far have visited an entry of the queue. For tests.
  std::uint64_t num_visits() const { return parts_.queue.num_visits; }

 private:
  Parts parts_;
  std::vector<SetAside> set_aside_;
};

}  // namespace shoal::scheduler
