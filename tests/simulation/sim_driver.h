// A driver in the simulated world: the real ActorCalls, a connection to the head that reconnects, and optionally one to the node of its
// host.
//
// Loop thread only. Owned by the cluster; its destruction without leave() or crash() is a crash.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/session/calls/actor_calls.h"
#include "runtime/sim/sim_world.h"
#include "tests/simulation/process_table.h"

namespace shoal::simulation {

class SimDriver final : public runtime::PeerHandler {
 public:
  SimDriver(runtime::SimWorld& world, ProcessTable& processes, const std::string& host, std::vector<runtime::Endpoint> heads,
            std::optional<runtime::Endpoint> node);
  ~SimDriver();

  // True once the head has registered this driver's job, the node (if any) has registered its process, and the head is connected.
  bool joined() const { return bool(job_) && head_.peer && (!node_.endpoint || node_.worker); }
  JobId job() const { return job_; }
  WorkerId worker() const { return node_.worker; }  // this process's id, given by its node; empty while it is not attached to one
  const std::string& host() const { return network_->host(); }

  // A gang of `count` actors with `cpus` each. Refused before joined().
  std::vector<ActorId> create_gang(std::size_t count, double cpus);
  // An actor with one CPU and up to `restarts` restarts, each call of it with as many retries; in `group`, if given. With `creator`, the
  // request says that this worker creates the actor.
  ActorId create_actor(int restarts, GroupId group = {}, WorkerId creator = {});
  // A placement group of `count` bundles with one CPU each.
  GroupId create_group(std::size_t count, actors::Strategy strategy);
  void remove_group(GroupId group);
  actors::ValueFuture call(ActorId actor, const std::string& method, const std::string& text = {});
  void kill(ActorId actor);
  // A job of `count` programs with `cpus` each that exit after `ms` (0: never) with `code`. submitted() has the id that the head assigns.
  void submit(std::size_t count, double cpus, int ms, int code);
  const std::vector<JobId>& submitted() const { return submitted_; }
  void stop(JobId job, bool force);

  bool alive(ActorId actor) const { return calls_.actors().alive(actor); }
  const Error* cause(ActorId actor) const { return calls_.actors().cause(actor); }
  // Futures that have no value yet.
  std::size_t num_unanswered() const;

  // Ends its job in order. The driver must live a moment longer, so that its frames are sent.
  void leave();
  void crash();

 private:
  // The connection to a head. The driver tries the endpoints in turn.
  struct ToHead {
    const std::vector<runtime::Endpoint> endpoints;
    std::size_t at = 0;
    runtime::Timer retry{};
    std::unique_ptr<runtime::Peer> peer{};
  };
  // The connection to the node of the driver's host, if that has one.
  struct ToNode {
    const std::optional<runtime::Endpoint> endpoint;
    WorkerId worker{};  // the id of this process, once the node has given it one
    runtime::Timer retry{};
    std::unique_ptr<runtime::Peer> peer{};
  };

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
  runtime::Clock& clock_;  // the clock of the driver's host
  const pid_t pid_;
  std::unique_ptr<runtime::SimNetwork> network_;
  JobId job_;
  bool gone_ = false;
  std::map<ActorId, std::uint64_t> next_;  // number of the next call on each actor
  std::set<ActorId> repeated_;             // actors whose lost calls are sent again
  std::vector<actors::ValueFuture> futures_;
  std::vector<JobId> submitted_;
  std::vector<GroupId> removed_groups_;
  actors::ActorCalls calls_;
  ToHead head_;
  ToNode node_;
};

}  // namespace shoal::simulation
