// A driver in the simulated world: the real ActorCalls, a connection to the head that is made again when it breaks, and
// (if it is asked to) one to the node of its host.
//
// Loop thread only. Owned by the cluster; its destruction without leave() or crash() is a crash.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/session/actor_calls.h"
#include "runtime/sim/sim_world.h"
#include "tests/simulation/process_table.h"

namespace shoal::simulation {

class SimDriver final : public runtime::PeerHandler {
 public:
  SimDriver(runtime::SimWorld& world, ProcessTable& processes, const std::string& host, std::vector<runtime::Endpoint> heads,
            std::optional<runtime::Endpoint> node);
  ~SimDriver();

  // The head knows its job (and the node, if there is one, knows its process), and the connection to the head is there.
  bool joined() const { return bool(job_) && head_ && (!node_ || worker_); }
  JobId job() const { return job_; }
  WorkerId worker() const { return worker_; }  // what the node calls its process; none when it is not attached
  const std::string& host() const { return network_->host(); }

  // A gang of `count` actors with `cpus` each. Before joined(): refused.
  std::vector<ActorId> create_gang(std::size_t count, double cpus);
  // One with a CPU, out of `group` if one is given, started again after `restarts` deaths; its calls are made again as often. With a
  // creator, as if that process had asked for it.
  ActorId create_actor(int restarts, GroupId group = {}, WorkerId creator = {});
  // A bundle of one CPU for each of `count`.
  GroupId create_group(std::size_t count, actors::Strategy strategy);
  void remove_group(GroupId group);
  actors::ValueFuture call(ActorId actor, const std::string& method, const std::string& text = {});
  void kill(ActorId actor);
  // A job of `count` programs with `cpus` each that end by themselves after `ms` (0: never) with `code`. The head gives it an id
  // of its own, told by submitted().
  void submit(std::size_t count, double cpus, int ms, int code);
  const std::vector<JobId>& submitted() const { return submitted_; }
  void stop(JobId job, bool force);

  bool alive(ActorId actor) const { return calls_.alive(actor); }
  const Error* cause(ActorId actor) const { return calls_.cause(actor); }
  // Futures that have no value yet.
  std::size_t num_unanswered() const;

  // Ends its job in order. To be given a moment before it is destroyed.
  void leave();
  void crash();

 private:
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void connect_head();
  void connect_node();
  void joined_head();
  std::vector<ActorId> create(actors::GangSpec spec, std::size_t count, double cpus);
  void watch(ActorId actor);
  void lost(ActorId actor, const Error& cause);
  void retry_later();

  runtime::SimWorld& world_;
  ProcessTable& processes_;
  runtime::Clock& clock_;  // of its host
  const pid_t pid_;
  const std::vector<runtime::Endpoint> heads_;
  std::size_t at_head_ = 0;
  const std::optional<runtime::Endpoint> node_;
  std::unique_ptr<runtime::SimNetwork> network_;
  JobId job_;
  WorkerId worker_;
  bool gone_ = false;
  runtime::Timer retry_, retry_node_;
  std::map<ActorId, std::uint64_t> next_;  // number of the next call on each actor
  std::set<ActorId> repeated_;             // calls on these are made again when they are lost
  std::vector<actors::ValueFuture> futures_;
  std::vector<JobId> submitted_;
  std::vector<GroupId> removed_groups_;
  actors::ActorCalls calls_;
  std::unique_ptr<runtime::Peer> head_, node_link_;
};

}  // namespace shoal::simulation
