#include "scheduler/head/head.h"

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using actors::Method;

// A store that refuses commits while `locked`, and keeps them open while `slow`.
class LockedStore final : public Store {
 public:
  void commit(const std::vector<Record>& records, std::function<void(Result<void>)> done) override {
    ++num_commits;
    if (slow) {
      inner_->commit(records, [](Result<void>) {});
      done_ = std::move(done);
      return;
    }
    if (!locked) return inner_->commit(records, std::move(done));
    ++num_refused;
    done(fail(fenced ? unavailable("another head leads").with_reason("Fenced") : unavailable("database is locked")));
  }
  Result<std::vector<Record>> load() override { return inner_->load(); }
  void finish() { std::exchange(done_, {})({}); }
  bool locked = false, slow = false, fenced = false;  // `fenced`: another head leads, so the store refuses this one's commits
  int num_refused = 0, num_commits = 0;

 private:
  const std::unique_ptr<Store> inner_ = make_memory_store();
  std::function<void(Result<void>)> done_;
};

class HeadTest : public testing::Test, public runtime::PeerHandler {
 protected:
  HeadTest() {
    EXPECT_TRUE(head_->start());
    client_network_->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kClient, 5s, [this](auto connection) {
      client_ = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this);
    });
    EXPECT_TRUE(world_.run_until([this] { return client_ != nullptr; }, 5s));
  }
  ~HeadTest() override {
    head_network_->crash();
    client_network_->crash();
  }

  JobId submit() {
    std::optional<JobId> job;
    client_->call(actors::number(Method::kSubmitJob), {to_bytes(waiting()), {}, {}}, 5s,
                  [&](Result<runtime::Message> r) { job = actors::from_bytes<actors::JobRef>(r.value().body).value().job; });
    EXPECT_TRUE(world_.run_until([&] { return job.has_value(); }, 5s));
    return job.value_or(JobId());
  }
  static actors::JobSpec waiting() {
    actors::JobSpec spec;
    spec.wait = true;  // wait, since the cluster has no node
    return spec;
  }
  void call(Method method, Bytes body, std::optional<Result<runtime::Message>>& answer) {
    client_->call(actors::number(method), {std::move(body), {}, {}}, 60s, [&](Result<runtime::Message> r) { answer = std::move(r); });
  }
  Head::Options options() {
    Head::Options o;
    o.listen = {runtime::Endpoint::tcp("head", 6400)};
    o.leads = [this] { return leads_; };
    o.on_fenced = [this] { ++num_fenced_; };
    o.on_ending = [this] { ++num_ending_; };
    o.on_ended = [this] { ++num_ended_; };
    o.watch_process = [this](pid_t pid, std::function<void()> gone) {
      watched_[pid] = std::move(gone);
      return std::make_shared<int>(0);
    };
    return o;
  }
  // A node's process as the head sees it: it listens, and it has joined over TCP.
  struct FakeNode {
    std::unique_ptr<runtime::SimNetwork> network;
    std::unique_ptr<runtime::Listener> listener;
    std::unique_ptr<runtime::Peer> peer;
    ~FakeNode() { network->crash(); }
  };
  void join(FakeNode& node, const std::string& host, pid_t pid, const runtime::Endpoint& at, NodeId id) {
    node.network = world_.fabric().attach(host, pid);
    node.listener = node.network->listen(at, [](std::unique_ptr<runtime::Connection>) {}).value();
    node.network->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kNode, 5s, [&](auto connection) {
      node.peer = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this);
    });
    EXPECT_TRUE(world_.run_until([&] { return node.peer != nullptr; }, 5s));
    actors::RegisterNode me;
    me.id = id;
    me.pid = 9999;  // a pid of another pid namespace
    me.endpoint = node.listener->endpoint().to_string();
    me.resources = actors::Resources::of({{"CPU", 1}}).value();
    node.peer->call(actors::number(Method::kRegisterNode), {to_bytes(me), {}, {}}, 5s, [](auto r) { EXPECT_TRUE(r); });
    world_.run_for(100ms);
    EXPECT_EQ(head_->state().node(id)->state, actors::NodeState::kAlive);
  }
  std::map<JobId, std::string> jobs_kept() {
    std::map<JobId, std::string> out;
    const auto records = store_.load().value();
    for (const auto& r : records) {
      if (r.table == TableName::kJobs) out[JobId{r.id}] = r.state;
    }
    return out;
  }

  runtime::SimWorld world_{{}};
  LockedStore store_;
  bool leads_ = true;
  int num_fenced_ = 0, num_ending_ = 0, num_ended_ = 0;
  int num_ended_nodes_ = 0;  // notices of the cluster's end that nodes got
  std::map<pid_t, std::function<void()>> watched_;
  std::unique_ptr<runtime::SimNetwork> head_network_ = world_.fabric().attach("head", 1);
  std::unique_ptr<runtime::SimNetwork> client_network_ = world_.fabric().attach("client", 2);
  std::unique_ptr<Head> head_ =
      std::make_unique<Head>(world_.clock(), world_.random(), *head_network_, store_, runtime::make_null_log(), options());
  std::unique_ptr<runtime::Peer> client_;
  std::vector<actors::ActorRow> reported_;
  bool holds_ = false;  // keep back the answers to requests that the head sends
  std::vector<std::pair<std::uint16_t, runtime::Responder>> held_;

 private:
  void on_request(runtime::Peer&, runtime::Request request, runtime::Responder responder) override {
    if (holds_) return held_.emplace_back(request.method, std::move(responder)), void();
    responder.reply({});
  }
  void on_notice(runtime::Peer&, runtime::Request notice) override {
    if (notice.method == actors::number(Method::kActorUpdate))
      reported_.push_back(actors::from_bytes<actors::ActorRow>(notice.message.body).value());
    num_ended_nodes_ += notice.method == actors::number(Method::kEndNode);
  }
  void on_closed(runtime::Peer&, const Error&) override {}
};

TEST_F(HeadTest, AnUnstoredDecisionIsNotPublished) {
  const JobId before = submit();
  store_.locked = true;
  std::optional<Result<runtime::Message>> during, stopped;
  call(Method::kSubmitJob, to_bytes(waiting()), during);
  call(Method::kStopJob, to_bytes(actors::StopJob{before, false}), stopped);
  world_.run_for(1s);
  EXPECT_FALSE(during || stopped);
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{before, "PENDING"}}));
  EXPECT_GT(store_.num_refused, 1);
  std::optional<Result<runtime::Message>> looked;  // the answer to a request without effect
  call(Method::kStatus, {}, looked);
  world_.run_for(10ms);
  EXPECT_TRUE(looked && *looked);
  store_.locked = false;
  world_.run_for(1s);
  ASSERT_TRUE(during && *during && stopped && *stopped);
  const JobId second = actors::from_bytes<actors::JobRef>((*during)->body)->job;
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{before, "STOPPED"}, {second, "PENDING"}}));
}

TEST_F(HeadTest, AHeadThatCannotStoreItsStateRefusesWithTheReason) {
  store_.locked = true;
  std::optional<Result<runtime::Message>> held, refused;
  call(Method::kSubmitJob, to_bytes(waiting()), held);
  world_.run_for(3s);
  call(Method::kSubmitJob, to_bytes(waiting()), refused);
  world_.run_for(10ms);
  ASSERT_TRUE(refused && !*refused);
  EXPECT_EQ(refused->error().reason(), "NotDurable");
  EXPECT_NE(refused->error().message().find("database is locked"), std::string::npos);
  ASSERT_TRUE(held && !*held);
  EXPECT_EQ(held->error().reason(), "NotDurable");
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_EQ(jobs_kept().size(), 0u);
}

// The requests came before the head had found that it cannot store, so they were decided already.
TEST_F(HeadTest, ARequestThatIsRefusedWhileItWaitsForTheStoreHasNoEffectLater) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  std::optional<Result<runtime::Message>> submitted, joined, created, grouped, stopped;
  const JobId job = submit();
  store_.locked = true;
  holds_ = true;  // records what the node is asked for
  actors::JobSpec runs = waiting();
  runs.wait = false;
  call(Method::kSubmitJob, to_bytes(runs), submitted);
  call(Method::kRegisterDriver, to_bytes(actors::RegisterDriver{}), joined);
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = job;
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  gang.max_restarts = 3;
  call(Method::kCreateGang, to_bytes(gang), created);
  actors::GroupSpec group;
  group.id = GroupId{7};
  group.job = job;
  group.bundles = {actors::Resources::of({{"CPU", 1}}).value()};
  call(Method::kCreateGroup, to_bytes(group), grouped);
  call(Method::kStopJob, to_bytes(actors::StopJob{job, false}), stopped);
  world_.run_for(3s);
  for (const auto* answer : {&submitted, &joined, &created, &grouped, &stopped}) {
    ASSERT_TRUE(*answer && !**answer);
    EXPECT_EQ((*answer)->error().reason(), "NotDurable");
  }
  EXPECT_NE(stopped->error().message().find("is done once the state can be stored"), std::string::npos);
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_TRUE(std::ranges::none_of(held_, [](const auto& asked) { return asked.first == actors::number(Method::kStartWorker); }));
  EXPECT_EQ(jobs_kept(), (std::map<JobId, std::string>{{job, "RUNNING"}}));  // until its process has ended
  EXPECT_EQ(head_->state().actor(gang.actors[0].id)->state, actors::ActorState::kDead);
  EXPECT_EQ(head_->state().group(group.id)->state, actors::GroupState::kRemoved);
  head_->state().check_invariants();
}

// If the head lost the announcement at a restart, it would take the announced end for a crash, and start the actor again.
TEST_F(HeadTest, AnAnnouncedEndIsAnsweredOnceItIsStoredAndNeverRefused) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  gang.actors[0].resources = actors::Resources::of({{"CPU", 1}}).value();
  std::optional<Result<runtime::Message>> created, held, left, left_late;
  call(Method::kCreateGang, to_bytes(gang), created);
  world_.run_for(200ms);
  ASSERT_TRUE(created && *created);
  const WorkerId worker = head_->state().actor(gang.actors[0].id)->worker;
  ASSERT_TRUE(worker);
  store_.locked = true;
  call(Method::kSubmitJob, to_bytes(waiting()), held);
  world_.run_for(300ms);
  ASSERT_GT(store_.num_refused, 0);
  call(Method::kWorkerLeaves, to_bytes(actors::GetCreationSpec{worker}), left);
  world_.run_for(2s);  // longer than refuse_after
  call(Method::kWorkerLeaves, to_bytes(actors::GetCreationSpec{worker}), left_late);
  world_.run_for(300ms);
  EXPECT_FALSE(left || left_late);
  store_.locked = false;
  world_.run_for(1s);
  EXPECT_TRUE(left && *left && left_late && *left_late);
}

TEST_F(HeadTest, SimultaneousEventsAreCommittedTogether) {
  std::vector<std::optional<Result<runtime::Message>>> answers(20);
  store_.slow = true;
  for (auto& a : answers) call(Method::kSubmitJob, to_bytes(waiting()), a);
  world_.run_for(100ms);
  EXPECT_EQ(store_.num_commits, 1);  // the commit of the first request is under way
  for (const auto& a : answers) EXPECT_FALSE(a);
  store_.finish();
  world_.run_for(100ms);
  EXPECT_EQ(store_.num_commits, 2);  // one more commit has all other requests
  store_.finish();
  world_.run_for(100ms);
  for (const auto& a : answers) EXPECT_TRUE(a && *a);
  EXPECT_EQ(jobs_kept().size(), 20u);
}

TEST_F(HeadTest, AHeadWhoseStoreHasAnotherLeaderPublishesNoDecision) {
  store_.locked = store_.fenced = true;
  std::optional<Result<runtime::Message>> decided, looked;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(10s);
  call(Method::kStatus, {}, looked);
  world_.run_for(1s);
  EXPECT_FALSE(decided && *decided);
  ASSERT_TRUE(looked && !*looked);
  EXPECT_EQ(looked->error().reason(), "Disconnected");  // with this reason, a client repeats the request to the next head
  EXPECT_EQ(num_fenced_, 1);
  EXPECT_EQ(store_.num_commits, 1);
  client_.reset();  // fails pending calls while the variables of their results exist
}

TEST_F(HeadTest, AHeadThatCannotProveItsLeaseDecidesAndPublishesNothing) {
  const JobId before = submit();
  const int commits = store_.num_commits;
  leads_ = false;
  std::optional<Result<runtime::Message>> decided, looked;
  call(Method::kStopJob, to_bytes(actors::StopJob{before, false}), decided);
  call(Method::kStatus, {}, looked);
  world_.run_for(1s);
  ASSERT_TRUE(decided && looked);
  EXPECT_FALSE(*decided || *looked);
  EXPECT_EQ(num_fenced_, 1);
  leads_ = true;  // once fenced, a head does not lead again
  world_.run_for(1s);
  EXPECT_EQ(store_.num_commits, commits);
}

TEST_F(HeadTest, DecisionsStoredWhileTheLeaseEndedAreNotPublished) {
  store_.slow = true;
  std::optional<Result<runtime::Message>> decided;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(100ms);
  ASSERT_EQ(store_.num_commits, 1);
  leads_ = false;
  store_.finish();
  world_.run_for(1s);
  EXPECT_FALSE(decided);  // this head never answers; the next one gets the request again
  client_.reset();
}

TEST_F(HeadTest, AnEndingHeadBreaksConnectionsInsteadOfAnsweringUncommittedRequests) {
  store_.slow = true;
  std::optional<Result<runtime::Message>> decided;
  call(Method::kSubmitJob, to_bytes(waiting()), decided);
  world_.run_for(100ms);
  ASSERT_EQ(store_.num_commits, 1);
  head_.reset();
  world_.run_for(1s);
  ASSERT_TRUE(decided && !*decided);
  EXPECT_EQ(decided->error().reason(), "Disconnected");
}

// If a connection could register two nodes, the second would stay in the head's list after the connection is closed.
TEST_F(HeadTest, AConnectionIsOneNodesAlone) {
  std::unique_ptr<runtime::Peer> node;
  const auto network = world_.fabric().attach("node", 3);
  network->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kNode, 5s,
                   [&](auto connection) { node = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this); });
  ASSERT_TRUE(world_.run_until([&] { return node != nullptr; }, 5s));
  std::vector<std::optional<Result<runtime::Message>>> answers(3);
  actors::RegisterNode me;
  me.resources = actors::Resources::of({{"CPU", 1}}).value();
  for (std::size_t i = 0; i < answers.size(); ++i) {
    me.id = NodeId{i == 0 ? 1u : i};  // the second request repeats the first, with the same id
    node->call(actors::number(Method::kRegisterNode), {to_bytes(me), {}, {}}, 5s, [&, i](auto r) { answers[i] = std::move(r); });
  }
  world_.run_for(100ms);
  ASSERT_TRUE(answers[0] && answers[1] && answers[2]);
  EXPECT_TRUE(*answers[0]);
  EXPECT_TRUE(*answers[1]);
  ASSERT_FALSE(*answers[2]);
  EXPECT_EQ(answers[2]->error().code(), Code::kInvalidArgument);
  node.reset();
  world_.run_for(100ms);
  std::optional<Result<runtime::Message>> shut;
  call(Method::kShutdown, {}, shut);  // this notifies all nodes with a connection
  world_.run_for(100ms);
  EXPECT_TRUE(shut && *shut);
  network->crash();
}

TEST_F(HeadTest, TheEndOfTheClusterReachesANodeThatIsAboutToJoinAgain) {
  FakeNode stays, away, again;
  join(stays, "stays", 3, runtime::Endpoint::tcp("stays", 1), NodeId{5});
  join(away, "away", 4, runtime::Endpoint::tcp("away", 1), NodeId{6});
  away.peer.reset();
  world_.run_for(1ms);
  for (int i = 0; i < 2; ++i) {  // the command repeats its request if no answer comes in time
    std::optional<Result<runtime::Message>> shut;
    call(Method::kShutdown, {}, shut);
    ASSERT_TRUE(world_.run_until([&] { return shut.has_value(); }, 5s));
    EXPECT_TRUE(*shut);
  }
  world_.run_for(100ms);
  EXPECT_EQ(num_ending_, 1);
  EXPECT_EQ(num_ended_nodes_, 1);
  EXPECT_EQ(num_ended_, 0);
  join(again, "again", 7, runtime::Endpoint::tcp("again", 1), NodeId{6});
  EXPECT_EQ(num_ended_nodes_, 2);
  EXPECT_EQ(num_ended_, 1);
}

TEST_F(HeadTest, TheEndOfTheClusterDoesNotWaitForADeadNode) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 1), NodeId{5});
  node.network->crash();
  node.peer.reset();
  world_.run_for(1ms);  // the head learns that the connection has ended
  std::optional<Result<runtime::Message>> shut;
  call(Method::kShutdown, {}, shut);
  ASSERT_TRUE(world_.run_until([&] { return num_ended_ == 1; }, 60s));
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kDead);
}

// A broken connection does not decide the outcome of the requests sent over it. The node reports that when it is back.
TEST_F(HeadTest, AConnectionThatBreaksWhileAWorkerStartsIsNotTheWorkersEnd) {
  FakeNode node, again;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  holds_ = true;
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  gang.actors[0].resources = actors::Resources::of({{"CPU", 1}}).value();
  client_->call(actors::number(Method::kCreateGang), {to_bytes(gang), {}, {}}, 5s, [](Result<runtime::Message> r) { EXPECT_TRUE(r); });
  const auto starts = [this] {
    return std::count_if(held_.begin(), held_.end(), [](const auto& h) { return h.first == actors::number(Method::kStartWorker); });
  };
  ASSERT_TRUE(world_.run_until([&] { return starts() == 1; }, 5s));
  node.peer.reset();
  world_.run_for(1s);
  EXPECT_EQ(head_->state().actor(gang.actors[0].id)->state, actors::ActorState::kStarting);
  join(again, "node", 4, runtime::Endpoint::tcp("node", 1), NodeId{5});
  again.peer->notify(actors::number(Method::kHeartbeat), {});
  ASSERT_TRUE(world_.run_until([&] { return starts() == 2; }, 5s));
  EXPECT_EQ(head_->state().actor(gang.actors[0].id)->num_restarts, 0);
  held_.clear();
}

// A refused connection proves that the node's process has ended; a broken connection does not.
TEST_F(HeadTest, ANodeThatIsGoneFromItsHostIsLostAtOnce) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 0), NodeId{5});
  node.peer.reset();
  world_.run_for(4s);
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kAlive);
  node.listener.reset();
  world_.run_for(500ms);
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kDead);
}

// The path of a unix socket means nothing on another host, so only missed heartbeats prove this node's death.
TEST_F(HeadTest, ANodeThatListensWhereTheHeadCannotAskIsLostByItsSilence) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::unix_at("here"), NodeId{5});
  EXPECT_TRUE(watched_.empty());
  node.peer.reset();
  world_.run_for(4s);
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kAlive);
  world_.run_for(2s);
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kDead);
}

// The node joined over TCP. The head watches the process that the kernel names as the listener on its socket, not the pid that the node
// sent.
TEST_F(HeadTest, ANodeOfThisHostThatJoinedByPortIsWatched) {
  FakeNode node;
  join(node, "head", 3, runtime::Endpoint::unix_at("here"), NodeId{5});
  ASSERT_EQ(watched_.size(), 1u);
  ASSERT_TRUE(watched_.contains(3));
  watched_[3]();
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kDead);
  EXPECT_EQ(head_->state().alive_nodes().size(), 0u);
}

TEST_F(HeadTest, AHeadThatDoesNotLeadAnyMoreDecidesNoEnd) {
  FakeNode node;
  join(node, "head", 3, runtime::Endpoint::unix_at("here"), NodeId{5});
  ASSERT_TRUE(watched_.contains(3));
  leads_ = false;
  watched_[3]();
  EXPECT_EQ(num_fenced_, 1);
  EXPECT_EQ(head_->state().node(NodeId{5})->state, actors::NodeState::kAlive);
}

// The notice of the actor's death precedes the answer, so calls made after kill() has returned fail, even if the process still runs.
TEST_F(HeadTest, AKillersDeathNoticePrecedesItsAnswer) {
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  client_->call(actors::number(Method::kCreateGang), {to_bytes(gang), {}, {}}, 5s, [](Result<runtime::Message> r) { EXPECT_TRUE(r); });
  world_.run_for(1s);
  EXPECT_TRUE(reported_.empty());  // the actor is not placed, since the cluster has no node
  bool answered = false;
  client_->call(actors::number(Method::kKillActor), {to_bytes(actors::ActorRef{gang.actors[0].id}), {}, {}}, 5s,
                [&](Result<runtime::Message> r) {
                  answered = true;
                  ASSERT_TRUE(r);
                  ASSERT_EQ(reported_.size(), 1u);
                  EXPECT_EQ(reported_[0].state, actors::ActorState::kDead);
                });
  ASSERT_TRUE(world_.run_until([&] { return answered; }, 5s));
}

// The first answer and later updates may be lost with a connection, so the repeated request gets the present state.
TEST_F(HeadTest, ARepeatedRequestForAnActorGetsItsState) {
  actors::GangSpec gang;
  gang.id = world_.random().id<GangId>();
  gang.job = submit();
  gang.actors.emplace_back().id = world_.random().id<ActorId>();
  std::optional<Result<runtime::Message>> created, killed, again;
  call(Method::kCreateGang, to_bytes(gang), created);
  call(Method::kKillActor, to_bytes(actors::ActorRef{gang.actors[0].id}), killed);
  world_.run_for(1s);
  ASSERT_TRUE(created && *created && killed && *killed);
  reported_.clear();
  call(Method::kCreateGang, to_bytes(gang), again);
  world_.run_for(1s);
  ASSERT_TRUE(again && *again);
  ASSERT_EQ(reported_.size(), 1u);
  EXPECT_EQ(reported_[0].state, actors::ActorState::kDead);
}

}  // namespace
}  // namespace shoal::scheduler
