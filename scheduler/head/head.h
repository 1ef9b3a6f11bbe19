// The head drives ClusterState: it listens, turns requests into events, stores what they change, then performs actions and answers. It is
// never on the path of a call, an object or a step.
//
// No decision becomes visible before it is stored: an event's actions and answers wait in an outbox for the commit of its changes. Events
// that arrive together share a commit. While the store fails (a locked database, a full disk), the outbox waits and each tick retries.
// After `refuse_after`, requests that change state are refused.
//
// Loop thread only. Everything it needs is passed in, so the simulation runs this very class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "actors/wire/method_table.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
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
    std::string session;  // folder, sent to those that join
    pid_t pid = 0;
    std::uint32_t heartbeat_ms = 500;
    runtime::Duration look_timeout = std::chrono::seconds(1);  // for a connection that checks whether a node still listens
    runtime::Duration tick = std::chrono::milliseconds(200);
    runtime::Duration call_timeout = std::chrono::seconds(30);   // for a node's answer
    runtime::Duration start_timeout = std::chrono::minutes(10);  // for the start of a process, which may import much
    runtime::Duration refuse_after = std::chrono::seconds(2);    // time of failing commits until requests are refused
    ClusterState::Options state;
    // Calls back when a process of this host ends, so that a node's death is known before its silence shows it. May be empty.
    std::function<std::shared_ptr<void>(pid_t, std::function<void()>)> watch_process;
    std::function<void()> on_shutdown;  // on a shutdown request, once the nodes are notified
    // Signs the certificate of a host that joins and has proved the token. Empty: the cluster lives on one host.
    std::function<Result<std::string>(const actors::SignCertificate&)> sign;
    std::string store;                                           // name of the store, for displays
    std::function<std::vector<actors::MetricFamily>()> measure;  // measurements of this process; may be empty
    Packages::Options packages;
    // With several heads: returns true while this one leads. Once it does not, it answers, decides and sends nothing any more.
    std::function<bool()> leads;
    std::function<void()> on_fenced;  // called once; the owner destroys the head, not within this call
  };

  // All references outlive the head.
  Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options);
  ~Head();

  // Restores the stored state, then listens on every endpoint, or returns the error that names a taken one.
  Result<void> start();
  std::vector<runtime::Endpoint> endpoints() const;
  // Endpoints of all heads in a cluster with several, the leader's first. Nodes are notified.
  void set_heads(std::vector<std::string> endpoints);

  const ClusterState& state() const { return state_; }

 private:
  struct Client {
    std::unique_ptr<runtime::Peer> peer;
    NodeId node;  // for clients that are nodes
    std::uint64_t number() const { return peer->number(); }
  };
  using Methods = actors::MethodTable<Client>;

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  // Sets the handlers of methods.
  void answer_cluster();
  void answer_jobs();  // and groups
  void answer_actors();
  void take_notices();
  Result<actors::ReportedMetrics> reported(const actors::Inspect& asked) const;
  Result<actors::RegisteredNode> register_node(Client& client, const actors::RegisterNode& node);
  Result<actors::RegisteredDriver> register_driver(Client& client, const actors::RegisterDriver& driver);
  void tick();
  void now() { state_.advance(clock_.now(), clock_.unix_millis()); }
  Result<void> restore();
  // Queues the effects of an event and schedules a commit. A change that no caller awaits may wait a moment for a commit that it can share.
  enum class Awaited { kYes, kNo };
  void settle(Awaited awaited = Awaited::kYes);
  void flush();
  void committed(std::vector<Record> records, Result<void> result);
  Result<void> writable() const;
  // Returns true once this head does not lead any more.
  bool fenced();
  void perform(Action action);
  void start_worker(const StartWorkerOn& start);
  void disconnect(const Disconnect& given_up);
  void find_port(const FindPortOn& find);
  void answer_hosted(const AnswerHosted& answer);
  void forget(std::uint64_t client);
  void to_node(NodeId node, actors::Method method, Bytes body, std::function<void(Result<runtime::Message>)> callback = {});
  Client& client(const runtime::Peer& peer) { return clients_.at(peer.number()); }

  runtime::Clock& clock_;
  runtime::Random& random_;
  runtime::Network& network_;
  Store& store_;
  const runtime::Log log_;
  const Options options_;
  const runtime::TimePoint began_ = clock_.now();
  ClusterState state_;
  Packages packages_;
  Methods methods_;
  Watchers watchers_;
  NodeWatch node_watch_;
  std::vector<std::unique_ptr<runtime::Listener>> listeners_;
  std::map<std::uint64_t, Client> clients_;  // in order of arrival
  std::uint64_t next_client_ = 1;
  std::map<NodeId, runtime::Peer*> nodes_;
  std::map<JobId, std::shared_ptr<void>> driver_watches_;  // until their job ends
  std::map<ActorId, runtime::Responder> hosting_;          // requests that wait for their gang
  struct Answer {
    runtime::Responder responder;
    Result<runtime::Message> result;
  };
  using Effect = std::variant<Action, Answer>;
  std::vector<Effect> outbox_;
  bool flush_soon_ = false;
  bool flush_in_a_moment_ = false;  // with flush_soon_: after kMoment
  std::vector<Effect> committing_;  // effects of the commit under way
  bool busy_ = false;               // a commit is under way, or its effects are being performed
  std::optional<Error> unsaved_;    // why the last commit failed
  runtime::TimePoint unsaved_since_{};
  std::vector<std::string> heads_;
  bool fenced_ = false;
  runtime::Timer ticking_, flushing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
