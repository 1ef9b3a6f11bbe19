// The head drives ClusterState: it listens, turns requests into events, stores what they change, then performs actions and answers. It is
// never on the path of a call, an object or a step.
//
// Its parts: Clients are the connections, NodeLinks those to nodes. Commits lets no decision take effect before it is stored. Fence stops
// decisions once another head leads. Watchers sends the changes of rows to clients, and NodeWatch proves that a node is gone.
//
// Loop thread only. All dependencies are arguments, so the simulation runs this very class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/protocol/wire/method_table.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/head/clients.h"
#include "scheduler/head/commits.h"
#include "scheduler/head/fence.h"
#include "scheduler/head/node_links.h"
#include "scheduler/head/node_watch.h"
#include "scheduler/head/packages.h"
#include "scheduler/head/watchers.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

class Head final : public runtime::PeerHandler {
 public:
  struct Options {
    std::vector<runtime::Endpoint> listen;
    std::string session;  // the session folder, sent to nodes and drivers that join
    pid_t pid = 0;
    std::uint32_t heartbeat_ms = 500;
    runtime::Duration probe_timeout = std::chrono::seconds(1);  // time limit of a connection that checks whether a node still listens
    runtime::Duration tick = std::chrono::milliseconds(200);
    runtime::Duration call_timeout = std::chrono::seconds(30);  // time limit of a node's answer
    // Time limit of the start of a process, which may import much.
    runtime::Duration start_timeout = std::chrono::minutes(10);
    Commits::Options commits;
    ClusterState::Options state;
    // Calls the function when a process of this host ends, so that a node's death is found before its heartbeats are missed. May be empty.
    std::function<std::shared_ptr<void>(pid_t, std::function<void()>)> watch_process;
    std::function<void()> on_ending;  // called once, on a request to end the cluster; may be empty
    std::function<void()> on_ended;   // called once, when each living node has been sent the cluster's end; may be empty
    // Signs the certificate of a host that joins and has proved that it has the token. Empty in a cluster on one host.
    std::function<Result<actors::SignedCertificate>(const actors::SignCertificate&)> sign;
    std::string store;                                           // name of the store, shown by `shoal status`
    std::function<std::vector<actors::MetricFamily>()> measure;  // returns measurements of this process; may be empty
    Packages::Options packages;
    // With several heads: returns true while this head leads. Once it returns false, the head decides, sends and answers nothing.
    std::function<bool()> leads;
    // Called once, when the head leads no more. The owner destroys the head, but not within this call.
    std::function<void()> on_fenced;
    // Called at the start with the stored rows that the state could not use, before others take their place in the store; may be empty.
    std::function<void(const std::vector<SetAside>&)> on_set_aside;
  };

  // All references outlive this object.
  Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options);

  // Restores the stored state, then listens on every endpoint. Returns an error that names an endpoint which is taken.
  Result<void> start();
  std::vector<runtime::Endpoint> endpoints() const { return clients_.endpoints(); }
  // Sets the endpoints of all heads in a cluster with several, the leader's first, and sends them to the nodes.
  void set_heads(std::vector<std::string> endpoints);

  const ClusterState& state() const { return state_; }

 private:
  using Client = Clients::Client;
  using Methods = actors::MethodTable<Client>;

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  // These functions set the handlers of methods, by subject.
  void answer_cluster();
  void answer_jobs();  // also for placement groups
  void answer_actors();
  void take_notices();
  Result<actors::ReportedMetrics> reported(const actors::Inspect& request) const;
  Result<actors::RegisteredNode> register_node(Client& client, const actors::RegisterNode& node);
  Result<actors::RegisteredDriver> register_driver(Client& client, const actors::RegisterDriver& driver);
  Result<void> restore();
  void tick();
  void now() { state_.advance(clock_.now(), clock_.unix_millis()); }
  // Lets the cluster state decide an event that did not come as a client's message. No effect once another head leads.
  template <class Event>
  void happened(const Event& event) {
    if (fence_.fenced()) return;
    now();
    state_.step(event);
    commits_.settle();
  }
  void perform(const Action& action);
  void start_worker(const StartWorkerOn& start);
  void disconnect(const Disconnect& given_up);
  void find_port(const FindPortOn& find);
  void answer_hosted(const AnswerHosted& answer);
  void forget(std::uint64_t client);
  // Returns true if a request names what was made and stored before, so that it needs no new decision.
  bool repeats(actors::Method method, const runtime::Message& request) const;
  void check_ended();

  runtime::Clock& clock_;
  runtime::Network& network_;
  Store& store_;
  const runtime::Log log_;
  const Options options_;
  const runtime::TimePoint began_ = clock_.now();
  std::vector<std::string> heads_;
  ClusterState state_;
  Fence fence_;
  Packages packages_;
  Methods methods_;
  Watchers watchers_;
  NodeWatch node_watch_;
  std::map<JobId, std::shared_ptr<void>> driver_watches_;  // watches on drivers' processes, until their jobs end
  runtime::Timer ticking_;
  // The end of the cluster, once it is requested. A node whose connection is broken gets the notice when it joins again.
  struct Ending {
    std::set<NodeId> notified;
    bool announced = false;
    bool over = false;  // each living node was notified
  };
  std::optional<Ending> ending_;
  Commits commits_;
  std::map<ActorId, runtime::Responder> hosting_;  // requests of kHostActor, until their gang is complete
  // Destroyed before hosting_ and commits_, which have answers that wait. So clients see a broken connection, and ask the next head.
  Clients clients_;
  NodeLinks links_;  // destroyed before the connections in clients_
};

}  // namespace shoal::scheduler
