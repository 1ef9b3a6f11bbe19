// The workers of a pool: which of them takes the next task, and which are no longer needed. Loop thread only.
//
// When tasks are spread over nodes, a task goes to the node whose last turn is longest ago. A node whose worker is being made keeps its
// turn for a while. Workers are visited in the order of their ids.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "actors/session/tasks/pool_task.h"

namespace shoal::actors {

struct PoolWorker {
  enum class State : std::uint8_t {
    kStarting,
    kReady,
    kRetired,  // it gets no more tasks
    kDead,     // its process has ended, and the tasks that it had are still to be returned
  };
  // The state of the worker's CPUs. kRequested: they are requested back, without an answer yet. kRefused: the last request failed.
  enum class Cpus : std::uint8_t { kHeld, kLent, kRequested, kRefused };

  State state = State::kStarting;
  Cpus cpus = Cpus::kHeld;
  runtime::TimePoint request_after;  // after kRefused: when to send the next request
  runtime::Duration pause = {};      // after kRefused: the pause before the next request
  std::deque<PoolTaskPtr> in_flight;
  double expected = 0;    // expected seconds of all tasks in in_flight
  std::size_t again = 0;  // number of its tasks that were lost and wait again
  runtime::TimePoint created_at, idle_since, last_ended;
  std::map<std::uint64_t, std::uint32_t> calls;  // numbers of calls by function, for functions with max_calls
  NodeId node;                                   // set if tasks are spread
};

class PoolWorkers {
 public:
  using Workers = std::map<ActorId, PoolWorker>;
  // `changed` is called when a worker may take tasks that it could not take before.
  PoolWorkers(runtime::Clock& clock, const TaskPoolOptions& options, std::function<void()> changed)
      : clock_(clock), options_(options), changed_(std::move(changed)) {}
  // Ends the timer, since its loop may end before this object. Returns the workers.
  Workers close();

  // Spreads tasks over nodes from now on; `node` returns the node of a worker.
  void spread(std::function<NodeId(ActorId)> node) { node_ = std::move(node); }
  bool spreads() const { return node_ != nullptr; }

  Workers& all() { return workers_; }
  const Workers& all() const { return workers_; }
  PoolWorker* find(ActorId id);
  void add(ActorId id, NodeId node);
  void set_ready(ActorId id, PoolWorker& worker);
  // To be called when a worker could not be made while others exist: for a while no more are wanted.
  void pause_making();
  bool may_make_more() const { return clock_.now() >= wants_after_; }
  void erase(ActorId id) { workers_.erase(id); }

  // The worker that takes the next task, which lasts `takes` seconds; end() if none can take it now.
  Workers::iterator choose(double takes);
  // If tasks are spread: true if a node whose turn comes before that of `chosen` has a worker that is being made.
  bool keeps_turn(const PoolWorker& chosen);
  void take_turn(const PoolWorker& chosen) { turns_[chosen.node] = next_turn_++; }

  // If tasks are spread: true if some worker can run the tasks, although another one could not be made.
  bool has_another() const;
  // Does not count workers that have been starting for longer than turn_kept.
  std::size_t num_starting() const;
  // The nodes in `roomy` that have no worker, in the order of their turns.
  std::vector<NodeId> nodes_without(std::vector<NodeId> roomy) const;
  // To be called when other jobs wait for the workers' resources. Retires the idle workers older than `lease` or, if there are none, the
  // oldest one.
  void give_back(runtime::Duration lease);
  // Removes retired workers without tasks, and those idle for longer than `idle` for whose state nothing_to_do() holds. Returns their ids.
  std::vector<ActorId> take_ended(runtime::Duration idle, const std::function<bool(PoolWorker::State)>& nothing_to_do);

 private:
  bool is_better(const PoolWorker& one, const PoolWorker& other) const;
  std::uint64_t turn_of(NodeId node) const;

  runtime::Clock& clock_;
  const TaskPoolOptions& options_;
  const std::function<void()> changed_;
  Workers workers_;
  std::function<NodeId(ActorId)> node_;    // set if tasks are spread
  std::map<NodeId, std::uint64_t> turns_;  // last turn of each node
  std::uint64_t next_turn_ = 1;
  runtime::Timer turn_over_;
  runtime::TimePoint wants_after_;  // until then no more workers are wanted (pause_making)
  runtime::Duration pause_ = {};
};

}  // namespace shoal::actors
