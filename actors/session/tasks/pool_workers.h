// The workers of a pool: which of them takes the next task, and which are no longer needed. Loop thread only.
//
// When tasks are spread, nodes have turns: a task goes to the node whose last turn is longest ago. The turn of a node whose worker is
// being made is kept for a while. Workers are visited in the order of their ids.
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
    kDead,     // its last tasks are still to be returned
  };
  // kAsked: the request is unanswered; kRefused: others had the CPUs.
  enum class Cpus : std::uint8_t { kHeld, kLent, kAsked, kRefused };

  State state = State::kStarting;
  Cpus cpus = Cpus::kHeld;
  runtime::TimePoint ask_after;  // for the next request after kRefused
  runtime::Duration pause = {};  // length of that wait
  std::deque<PoolTaskPtr> in_flight;
  double expected = 0;    // seconds for all of them
  std::size_t again = 0;  // lost tasks that wait again
  runtime::TimePoint made_at, idle_since, last_done;
  std::map<std::uint64_t, std::uint32_t> calls;  // by function, for those with a limit
  NodeId node;                                   // when spreading
};

class PoolWorkers {
 public:
  using Workers = std::map<ActorId, PoolWorker>;
  // `changed` is called when a worker may take tasks that could not before.
  PoolWorkers(runtime::Clock& clock, const TaskPoolOptions& options, std::function<void()> changed)
      : clock_(clock), options_(options), changed_(std::move(changed)) {}
  // Ends the timer, since its loop may end before this. Returns the workers.
  Workers close();

  // Tasks are spread over nodes from now on; `node` returns a worker's.
  void spread(std::function<NodeId(ActorId)> node) { node_ = std::move(node); }
  bool spreads() const { return node_ != nullptr; }

  Workers& all() { return workers_; }
  const Workers& all() const { return workers_; }
  PoolWorker* find(ActorId id);
  void add(ActorId id, NodeId node);
  void made(ActorId id, PoolWorker& worker);
  // A worker could not be made, while others exist: for a while no more are wanted.
  void pause_making();
  bool may_make_more() const { return clock_.now() >= wants_after_; }
  void erase(ActorId id) { workers_.erase(id); }

  // The worker for a task that takes so many seconds; end(): none can have it now.
  Workers::iterator choose(double takes);
  // When spreading: true if a node with an earlier turn has a worker being made.
  bool keeps_turn(const PoolWorker& chosen);
  void take_turn(const PoolWorker& chosen) { turns_[chosen.node] = next_turn_++; }

  // When spreading: another worker can run the tasks, although one could not be made.
  bool has_another() const;
  std::size_t num_starting() const;  // without stuck ones
  // The nodes among `roomy` without a worker, in the order of their turns.
  std::vector<NodeId> nodes_without(std::vector<NodeId> roomy) const;
  // Others wait for the workers' resources. Idle workers older than `lease` end; if there are none, the oldest gets no more tasks.
  void give_back(runtime::Duration lease);
  // Removes idle workers that are retired or, if there is `nothing_to_do` for their state, were idle for `idle`.
  std::vector<ActorId> take_ended(runtime::Duration idle, const std::function<bool(PoolWorker::State)>& nothing_to_do);

 private:
  bool is_better(const PoolWorker& one, const PoolWorker& other) const;
  std::uint64_t turn_of(NodeId node) const;

  runtime::Clock& clock_;
  const TaskPoolOptions& options_;
  const std::function<void()> changed_;
  Workers workers_;
  std::function<NodeId(ActorId)> node_;    // when spreading
  std::map<NodeId, std::uint64_t> turns_;  // last turn of each node
  std::uint64_t next_turn_ = 1;
  runtime::Timer turn_over_;
  runtime::TimePoint wants_after_;  // see pause_making
  runtime::Duration pause_ = {};
};

}  // namespace shoal::actors
