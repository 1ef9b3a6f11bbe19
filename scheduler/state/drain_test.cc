// Cordoned nodes, drained nodes, and jobs that are deleted.
#include <csignal>

#include <gtest/gtest.h>

#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;
using actors::ActorState;
using actors::NodeScheduling;
using actors::Resources;
using actors::WorkerState;

Resources of(const std::map<std::string, double>& amounts) { return Resources::from_amounts(amounts).value(); }

class DrainTest : public testing::Test {
 protected:
  DrainTest() {
    pass(1s);
    job_ = state_.step(DriverJoined{{"script.py", 100, {}}});
  }
  ~DrainTest() override { state_.check_invariants(); }

  void pass(runtime::Duration time) {
    now_ += time;
    unix_ms_ += std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
    state_.advance(now_, unix_ms_);
    for (const NodeId n : state_.alive_nodes()) state_.step(NodeBeat{n});
    state_.step(Tick{});
  }
  NodeId join(std::uint64_t id, double cpus, bool beside_head = false) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.host = "127.0.0.1";
    n.resources = of({{"CPU", cpus}, {actors::NodeRow::kBesideHead, beside_head ? 1 : 0}});
    EXPECT_TRUE(state_.step(NodeJoined{n}));
    return n.id;
  }
  ActorId actor(double cpus, int max_restarts = 0, const actors::Where& where = {}) {
    actors::GangSpec g;
    g.where = where;
    g.id = GangId{next_id_++};
    g.job = job_;
    g.actors = {{ActorId{next_id_++}, "A", of({{"CPU", cpus}})}};
    g.max_restarts = max_restarts;
    EXPECT_TRUE(state_.step(GangRequested{g}));
    start();
    return g.actors[0].id;
  }
  // Performs the actions: started workers run, killed ones exit.
  void start() {
    for (const auto& action : state_.take_actions()) {
      if (const auto* s = std::get_if<StartWorkerOn>(&action)) {
        state_.step(WorkerUpdated{s->node, {s->message.worker, WorkerState::kRunning, 1000, "unix:@w", 0, {}, {}, {}}});
      }
      if (const auto* s = std::get_if<StopWorkerOn>(&action)) gone(s->node, s->message.worker);
      if (const auto* e = std::get_if<EndNodeOn>(&action)) left_.push_back(e->node);
    }
    state_.check_invariants();
  }
  void gone(NodeId node, WorkerId worker) {
    state_.step(WorkerUpdated{node, {worker, WorkerState::kExited, 1000, "", 137, unavailable("was killed by SIGKILL"), {}, {}}});
  }
  void scheduling(NodeId node, NodeScheduling scheduling, std::uint64_t deadline_ms = 0) {
    const auto set = state_.step(SchedulingSet{{node, scheduling, deadline_ms}});
    EXPECT_TRUE(set) << set.error().message();
  }
  NodeId node_of(ActorId id) { return state_.actor(id)->node; }
  ActorState state_of(ActorId id) { return state_.actor(id)->state; }

  runtime::SeededRandom random_{1};
  ClusterState state_{{}, random_};
  runtime::TimePoint now_{};
  std::int64_t unix_ms_ = 0;
  std::uint64_t next_id_ = 100;
  JobId job_;
  std::vector<NodeId> left_;
};

TEST_F(DrainTest, ACordonedNodeTakesNoNewWorkAndKeepsItsOwn) {
  const NodeId node = join(1, 2);
  const ActorId first = actor(1);
  scheduling(node, NodeScheduling::kCordoned);
  const ActorId second = actor(1);
  EXPECT_EQ(state_of(first), ActorState::kAlive);
  EXPECT_EQ(state_of(second), ActorState::kPending);
  EXPECT_STREQ(actors::state_text(*state_.node(node)), "CORDONED");
  pass(2s);
  EXPECT_NE(state_.actor(second)->pending_reason.find("1 node is cordoned"), std::string::npos) << state_.actor(second)->pending_reason;
  scheduling(node, NodeScheduling::kSchedulable);
  start();
  EXPECT_EQ(state_of(second), ActorState::kAlive);
}

TEST_F(DrainTest, ARequestBoundToACordonedNodeHasThatReason) {
  const NodeId node = join(1, 2);
  join(2, 2);
  scheduling(node, NodeScheduling::kCordoned);
  actors::Where there;
  there.node = node;
  const ActorId waits = actor(1, 0, there);
  EXPECT_EQ(state_.actor(waits)->pending_reason, "has to be on node 0000000000000001, which is cordoned and takes no new work");
  scheduling(node, NodeScheduling::kSchedulable);
  start();
  EXPECT_EQ(node_of(waits), node);
}

// The wall clock is only displayed and may be set at any time.
TEST_F(DrainTest, AJumpOfTheWallClockChangesNoDrainsDeadline) {
  for (const std::int64_t jump : {86'400'000, -86'400'000}) {
    const NodeId node = join(static_cast<std::uint64_t>(2 + left_.size()), 1);
    actor(1);
    scheduling(node, NodeScheduling::kDraining, 60'000);
    unix_ms_ += jump;
    pass(30s);
    start();
    EXPECT_FALSE(std::find(left_.begin(), left_.end(), node) != left_.end()) << jump;
    pass(31s);
    start();
    ASSERT_FALSE(left_.empty());
    EXPECT_EQ(left_.back(), node) << jump;
    state_.step(NodeLost{node, unavailable("it left")});
  }
}

TEST_F(DrainTest, ARequestThatOnlyACordonedNodeCouldHoldPends) {
  scheduling(join(1, 4), NodeScheduling::kCordoned);
  actors::JobSpec spec;
  spec.resources = of({{"CPU", 4}});
  EXPECT_TRUE(state_.step(JobSubmitted{spec}));
  scheduling(NodeId{1}, NodeScheduling::kDraining, 1000);
  EXPECT_EQ(state_.step(JobSubmitted{spec}).error().reason(), "Infeasible");
}

TEST_F(DrainTest, ADrainedNodesActorsMoveAndThenItLeaves) {
  const NodeId old = join(1, 2);
  const ActorId one = actor(1, 1), two = actor(1, -1);
  const NodeId other = join(2, 2);
  scheduling(old, NodeScheduling::kDraining, 60'000);
  EXPECT_STREQ(actors::state_text(*state_.node(old)), "DRAINING");
  start();  // the old processes end
  start();  // the new ones start
  EXPECT_EQ(node_of(one), other);
  EXPECT_EQ(node_of(two), other);
  EXPECT_EQ(state_of(one), ActorState::kAlive);
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{old});
  pass(1s);
  start();
  EXPECT_EQ(left_.size(), 1u);  // a single EndNodeOn
  state_.step(NodeLost{old, unavailable("its node's process ended")});
  EXPECT_EQ(state_of(one), ActorState::kAlive);
}

TEST_F(DrainTest, TheNodeWithWhichTheClusterEndsLeavesLast) {
  const NodeId beside_head = join(1, 1, true), other = join(2, 1);
  const ActorId one = actor(1), two = actor(1);
  for (const NodeId node : {beside_head, other}) scheduling(node, NodeScheduling::kDraining, 60'000);
  ASSERT_EQ(node_of(one), beside_head);
  gone(beside_head, state_.actor(one)->worker);
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector<NodeId>());  // the other node's process still runs
  gone(other, state_.actor(two)->worker);
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{other});
  state_.step(NodeLost{other, unavailable("its node's process ended")});
  pass(1s);
  start();
  EXPECT_EQ(left_, (std::vector{other, beside_head}));
}

TEST_F(DrainTest, TheLastOfTwoNodesBesideHeadsWaitsForTheOthersWork) {
  const NodeId first = join(1, 1, true), second = join(2, 1, true), other = join(3, 1);
  const std::vector actors{actor(1), actor(1), actor(1)};
  for (const NodeId node : {first, second}) scheduling(node, NodeScheduling::kDraining, 60'000);
  for (const std::size_t n : {0, 1}) gone(node_of(actors[n]), state_.actor(actors[n])->worker);
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{first});
  state_.step(NodeLost{first, unavailable("its node's process ended")});
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{first});
  gone(other, state_.actor(actors[2])->worker);
  pass(1s);
  start();
  EXPECT_EQ(left_, (std::vector{first, second}));
}

TEST_F(DrainTest, TheLastNodeLeavesAtItsDeadlineAtTheLatest) {
  const NodeId beside_head = join(1, 1, true), other = join(2, 1);
  const ActorId one = actor(1), two = actor(1);
  scheduling(beside_head, NodeScheduling::kDraining, 10'000);
  gone(beside_head, state_.actor(one)->worker);
  pass(9s);
  start();
  EXPECT_EQ(left_, std::vector<NodeId>());
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{beside_head});
  EXPECT_EQ(node_of(two), other);
}

TEST_F(DrainTest, ANodeBesideOneOfTwoHeadsLeavesBeforeOthersHaveEnded) {
  const NodeId beside_head = join(1, 1, true), other = join(2, 1, true);
  const ActorId one = actor(1), two = actor(1);
  scheduling(beside_head, NodeScheduling::kDraining, 60'000);
  gone(beside_head, state_.actor(one)->worker);
  pass(1s);
  start();
  EXPECT_EQ(left_, std::vector{beside_head});
  EXPECT_EQ(node_of(two), other);
}

TEST_F(DrainTest, AnActorThatHasNowhereToGoStaysUntilTheDeadline) {
  const NodeId old = join(1, 2);
  const ActorId one = actor(2, -1);
  join(2, 1);
  scheduling(old, NodeScheduling::kDraining, 10'000);
  start();
  pass(2s);
  start();
  EXPECT_EQ(node_of(one), old);
  join(3, 2);  // room for the actor
  pass(1s);
  start();
  start();
  EXPECT_EQ(node_of(one), NodeId{3});
}

TEST_F(DrainTest, AnActorThatMovesLostItsProcessToTheDrain) {
  const NodeId old = join(1, 1);
  const ActorId one = actor(1, -1);
  join(2, 1);
  scheduling(old, NodeScheduling::kDraining, 10'000);
  for (const auto& action : state_.take_actions()) {
    if (const auto* s = std::get_if<StopWorkerOn>(&action)) gone(s->node, s->message.worker);
  }
  std::vector<std::string> reasons;  // in the reports to its callers
  for (const auto& action : state_.take_actions()) {
    const auto* n = std::get_if<NotifyActor>(&action);
    if (n != nullptr && n->row.id == one && n->row.state == ActorState::kRestarting) reasons.push_back(n->row.cause->reason());
  }
  EXPECT_EQ(reasons, std::vector<std::string>{"NodeDrained"});
}

TEST_F(DrainTest, TwoActorsDoNotMoveIntoTheSameRoom) {
  const NodeId old = join(1, 2);
  const ActorId one = actor(1, -1), two = actor(1, -1);
  join(2, 1);
  scheduling(old, NodeScheduling::kDraining, 10'000);
  for (int i = 0; i < 3; ++i) {
    pass(1s);  // the process being ended still lives
    start();
  }
  EXPECT_EQ(state_of(one), ActorState::kAlive);
  EXPECT_EQ(state_of(two), ActorState::kAlive);
  EXPECT_NE(node_of(one), node_of(two));
}

TEST_F(DrainTest, AnActorWithoutRestartsRunsUntilTheDeadline) {
  const NodeId old = join(1, 1);
  const ActorId one = actor(1);
  join(2, 1);
  scheduling(old, NodeScheduling::kDraining, 10'000);
  pass(9s);
  start();
  EXPECT_TRUE(left_.empty());
  EXPECT_EQ(state_of(one), ActorState::kAlive);
  pass(2s);
  start();
  EXPECT_EQ(left_, std::vector{old});
  EXPECT_FALSE(state_.step(SchedulingSet{{old, NodeScheduling::kSchedulable, 0}}));  // too late: the node was asked to leave
  state_.step(NodeLost{old, unavailable("its node's process ended")});
  EXPECT_EQ(state_.actor(one)->cause->reason(), "ActorDied");
  EXPECT_EQ(state_.actor(one)->cause->cause_reason(), "NodeDrained");
}

TEST_F(DrainTest, ADrainCanBeCalledOff) {
  const NodeId node = join(1, 1);
  const ActorId one = actor(1);
  scheduling(node, NodeScheduling::kDraining, 10'000);
  scheduling(node, NodeScheduling::kSchedulable);
  pass(20s);
  start();
  EXPECT_TRUE(left_.empty());
  EXPECT_EQ(state_of(one), ActorState::kAlive);
}

TEST_F(DrainTest, ADrainedNodeThatReconnectsGetsTheNoticeAgain) {
  const NodeId node = join(1, 1);
  state_.step(NodeAway{node});
  scheduling(node, NodeScheduling::kDraining, 0);
  start();
  join(1, 1);
  start();
  EXPECT_EQ(left_, (std::vector{node, node}));
}

TEST_F(DrainTest, OnlyAJobThatEndedIsDeleted) {
  join(1, 1);
  actors::JobSpec spec;
  spec.submission = {"mine", "true", "{}", {{"a", "b"}}};
  const JobId job = state_.step(JobSubmitted{spec}).value();
  EXPECT_EQ(state_.job(job)->submission, spec.submission);
  EXPECT_EQ(state_.step(JobSubmitted{spec}).error().reason(), "NameTaken");
  EXPECT_EQ(state_.step(JobDeleted{job}).error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(state_.step(JobStopped{job, true}));
  start();
  state_.take_actions();
  ASSERT_TRUE(state_.step(JobDeleted{job}));
  EXPECT_EQ(std::get<ForgetJob>(state_.take_actions().at(0)).job, job);
  EXPECT_EQ(state_.job(job), nullptr);
  EXPECT_EQ(state_.step(JobDeleted{job}).error().code(), Code::kNotFound);
  EXPECT_TRUE(state_.step(JobSubmitted{spec}));  // its id is free again
}

TEST_F(DrainTest, AJobWithoutAnIdOfItsOwnHasTheJobs) {
  join(1, 1);
  const JobId job = state_.step(JobSubmitted{{}}).value();
  EXPECT_EQ(state_.job(job)->submission.id, to_string(job));
}

}  // namespace
}  // namespace shoal::scheduler
