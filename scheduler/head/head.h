// The head: drives ClusterState. Listens, turns requests into events, keeps what they change, then performs actions and answers. Never on
// the path of a call, an object or a step.
//
// Nobody hears of a decision that is not kept: an event's actions and answers wait in an outbox until the store has what it changed.
// Events that come together are committed together. While the store takes nothing (somebody holds the database, the disk is full) the
// outbox waits, each tick tries again, and after a moment requests that would change something are refused.
//
// Loop thread only. Everything it needs is passed in, so the simulated world runs this very class.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "actors/wire/inspection.h"
#include "actors/wire/joining.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"
#include "scheduler/head/packages.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/store/store.h"

namespace shoal::scheduler {

class Head final : public runtime::PeerHandler {
 public:
  struct Options {
    std::vector<runtime::Endpoint> listen;
    std::string session;  // folder, told to whoever joins
    pid_t pid = 0;
    std::uint32_t heartbeat_ms = 500;
    runtime::Duration look_timeout = std::chrono::seconds(1);  // for the host of a node whose connection broke to say whether it listens
    runtime::Duration tick = std::chrono::milliseconds(200);
    runtime::Duration call_timeout = std::chrono::seconds(30);   // for a node's answer
    runtime::Duration start_timeout = std::chrono::minutes(10);  // of a process, which may have to import much first
    runtime::Duration refuse_after = std::chrono::seconds(2);    // without being able to keep what changes
    ClusterState::Options state;
    // Calls back when a process of this host is gone: a node's death is then known at once, not only by its silence.
    // May be empty.
    std::function<std::shared_ptr<void>(pid_t, std::function<void()>)> watch_process;
    std::function<void()> on_shutdown;  // asked to end: the nodes were told
    // The certificate for a host that joins, who has proved that it knows the token. Empty: the cluster lives on one host.
    std::function<Result<std::string>(const actors::SignCertificate&)> sign;
    std::string store;                                           // for people: where it keeps its decisions
    std::function<std::vector<actors::MetricFamily>()> measure;  // of its process, for whoever measures it; may be empty
    Packages::Options packages;
    // Of one head among several. Whether it still leads: once it does not it answers, decides and tells nothing any more.
    std::function<bool()> leads;
    std::function<void()> on_fenced;  // once; it is to be destroyed, but not from within this call
  };

  // All references outlive the head.
  Head(runtime::Clock& clock, runtime::Random& random, runtime::Network& network, Store& store, runtime::Log log, Options options);
  ~Head();

  // Goes on where the head before it ended; then listens on every endpoint, or says which one is taken.
  Result<void> start();
  std::vector<runtime::Endpoint> endpoints() const;
  // Of a cluster with several: where each is, the one that leads first. Nodes hear of it.
  void set_heads(std::vector<std::string> endpoints);

  const ClusterState& state() const { return state_; }

 private:
  struct Client {
    std::unique_ptr<runtime::Peer> peer;
    NodeId node;  // when it is one
  };

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;

  Result<runtime::Message> answer(Client& client, actors::Method method, const Bytes& body, runtime::Responder& responder, bool& later);
  Result<runtime::Message> sign_certificate(const Bytes& body);
  Result<runtime::Message> told(const Bytes& body) const;
  Result<runtime::Message> register_node(Client& client, const Bytes& body);
  Result<runtime::Message> register_driver(Client& client, const Bytes& body);
  void tick();
  void now() { state_.advance(clock_.now(), clock_.unix_millis()); }
  Result<void> restore();
  // After an event: what follows from it is on its way out. What nobody awaits may wait a moment for a commit that it can share.
  enum class Awaited { kYes, kNo };
  void settle(Awaited awaited = Awaited::kYes);
  void flush();
  void committed(std::vector<Record> records, Result<void> result);
  Result<void> writable() const;
  // It leads no more.
  bool fenced();
  void perform(Action action);
  void forget(std::uint64_t client);
  // Nodes whose connection broke: where nobody listens any more the process is gone.
  void look_for_missing();
  void watch_node(NodeId id, pid_t pid);
  // One that came over TCP may live on this host all the same.
  void watch_if_near(const actors::RegisterNode& node);
  void to_node(NodeId node, actors::Method method, Bytes body, std::function<void(Result<runtime::Message>)> callback = {});
  // Who watches a job hears on which nodes it has workers, or had.
  void job_is_on(NodeId node, const std::set<std::uint64_t>& watchers);
  void to_watchers(const std::set<std::uint64_t>& watchers, actors::Method method, const Bytes& body);
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
  std::vector<std::unique_ptr<runtime::Listener>> listeners_;
  std::map<std::uint64_t, Client> clients_;  // in the order in which they came
  std::uint64_t next_client_ = 1;
  std::map<NodeId, runtime::Peer*> nodes_;
  std::set<NodeId> missing_;                               // their connections broke
  std::set<NodeId> looked_for_;                            // whose host was asked, and has not answered yet
  std::map<NodeId, std::shared_ptr<void>> node_watches_;   // of their processes; a broken connection ends none
  std::map<JobId, std::shared_ptr<void>> driver_watches_;  // until their job ends
  std::map<ActorId, std::set<std::uint64_t>> actor_watchers_;
  std::map<JobId, std::set<std::uint64_t>> job_watchers_;
  std::map<JobId, std::set<NodeId>> job_nodes_;  // that they were told, until it ends
  std::map<GroupId, std::set<std::uint64_t>> group_watchers_;
  std::map<NodeId, std::set<std::uint64_t>> node_watchers_;
  std::map<ActorId, runtime::Responder> hosting_;  // waiting for their gang
  struct Answer {
    runtime::Responder responder;
    Result<runtime::Message> result;
  };
  using Effect = std::variant<Action, Answer>;
  std::vector<Effect> outbox_;
  bool flush_soon_ = false;
  bool flush_in_a_moment_ = false;  // soon, but not at once
  std::vector<Effect> committing_;  // what waits for the commit that is under way
  bool busy_ = false;               // a commit is under way, or its effects are being performed
  std::optional<Error> unsaved_;    // why the last commit failed
  runtime::TimePoint unsaved_since_{};
  std::vector<std::string> heads_;
  bool fenced_ = false;
  runtime::Timer ticking_, flushing_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
