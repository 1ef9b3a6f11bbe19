#include "scheduler/head/head_fixture.h"

namespace shoal::scheduler {
namespace {

// If a connection could register two nodes, the second would stay in the head's list after the connection is closed.
TEST_F(HeadTest, AConnectionIsOneNodesAlone) {
  std::unique_ptr<runtime::Peer> node;
  const auto network = world_.fabric().attach("node", 3);
  network->connect(runtime::Endpoint::tcp("head", 6400), runtime::Role::kNode, 5s,
                   [&](auto connection) { node = std::make_unique<runtime::Peer>(*std::move(connection), world_.clock(), *this); });
  ASSERT_TRUE(world_.run_until([&] { return node != nullptr; }, 5s));
  std::vector<std::optional<Result<runtime::Message>>> answers(3);
  actors::RegisterNode me;
  me.resources = actors::Resources::from_amounts({{"CPU", 1}}).value();
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

// Such a node ignores the notice of a drain, whose number is newer than it.
TEST_F(HeadTest, ADrainedNodeOfAnEarlierVersionIsAskedToEnd) {
  FakeNode node;
  join(node, "node", 3, runtime::Endpoint::tcp("node", 1), NodeId{5});
  std::optional<Result<runtime::Message>> drained;
  call(Method::kSetNodeScheduling, to_bytes(actors::SetNodeScheduling{NodeId{5}, actors::NodeScheduling::kDraining, 1000}), drained);
  world_.run_for(1s);
  EXPECT_TRUE(drained && *drained);
  EXPECT_EQ(num_ended_nodes_, 1);
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
  gang.actors[0].resources = actors::Resources::from_amounts({{"CPU", 1}}).value();
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

}  // namespace
}  // namespace shoal::scheduler
