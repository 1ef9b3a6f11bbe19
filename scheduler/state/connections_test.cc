// Nodes whose connection broke, and requests that got lost with it.
#include <csignal>

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

TEST_F(ClusterStateTest, AWorkerWhoseStartWasAbandonedIsEndedWhenReported) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{gang(job, 1, {{"CPU", 1}})}));
  const auto s = taken<StartWorkerOn>().at(0);
  state_.step(WorkerNotStarted{s.message.worker, 126, unavailable("the connection broke")});
  EXPECT_EQ(taken<StopWorkerOn>().size(), 1u);  // in case the request arrived
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
  ready(s);
  EXPECT_EQ(taken<StopWorkerOn>().size(), 1u);
  dies(s, 137, "was killed by SIGKILL");
  EXPECT_TRUE(actors().empty());
}

TEST_F(ClusterStateTest, AnUndeliveredStartIsRepeatedWhenTheNodeIsBack) {
  const JobId job = driver();
  const NodeId node = join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  state_.step(WorkerNotReached{s.message.worker, unavailable("the connection broke")});
  state_.step(NodeAway{node});
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kStarting);
  EXPECT_TRUE(actors().empty());
  join(1, {{"CPU", 1}});
  state_.step(NodeBeat{node});
  const auto again = taken<StartWorkerOn>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].message.worker, s.message.worker);
  ready(s);
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kAlive);
}

TEST_F(ClusterStateTest, AWorkerOfAnUnreachedNodeEndsWithTheNode) {
  const JobId job = driver();
  const NodeId node = join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  state_.step(WorkerNotReached{s.message.worker, unavailable("the connection broke")});
  state_.step(NodeLost{node, unavailable("it is silent")});
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kDead);
}

TEST_F(ClusterStateTest, AnActorOfALostNodeDiesOfThatAlsoIfItsDriverWasThere) {
  for (const std::uint64_t driver_id : {1u, 5000000u}) {  // ordered before all other workers, and after some
    const NodeId node = join(driver_id, {{"CPU", 4}});
    const JobId job = driver();
    state_.step(WorkerUpdated{node, {WorkerId{driver_id}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
    const auto g = gang(job, 4, {{"CPU", 1}});
    ASSERT_TRUE(state_.step(GangRequested{g}));
    for (const auto& s : taken<StartWorkerOn>()) ready(s);
    state_.step(NodeLost{node, unavailable("the node is gone")});
    EXPECT_EQ(state_.job(job)->state, JobState::kFailed);
    for (const auto& a : g.actors) EXPECT_NE(state_.actor(a.id)->cause->message().find("the node is gone"), std::string::npos);
  }
}

TEST_F(ClusterStateTest, AJobWithoutItsPortPendsAgain) {
  const NodeId node = join(1, {{"CPU", 2}});
  actors::JobSpec spec;
  spec.num_workers = 2;
  spec.resources = of({{"CPU", 1}});
  const JobId job = state_.step(JobSubmitted{spec}).value();
  ASSERT_EQ(taken<FindPortOn>().size(), 1u);
  state_.step(PortNotRequested{job});
  EXPECT_EQ(state_.status().available, of({{"CPU", 2}}));
  EXPECT_TRUE(taken<FindPortOn>().empty());  // the connection may be about to break
  state_.step(NodeAway{node});
  pass(1s);
  state_.step(Tick{});
  EXPECT_TRUE(taken<FindPortOn>().empty());
  join(1, {{"CPU", 2}});
  ASSERT_EQ(taken<FindPortOn>().size(), 1u);
  state_.step(PortFound{job, 5});
  EXPECT_EQ(taken<StartWorkerOn>().size(), 2u);
  EXPECT_EQ(state_.status().available.units("CPU"), 0);
}

TEST_F(ClusterStateTest, AnUnreachedNodeIsAskedForAPortAgain) {
  join(1, {{"CPU", 1}});
  actors::JobSpec spec;
  spec.num_workers = 1;
  spec.resources = of({{"CPU", 1}});
  const JobId job = state_.step(JobSubmitted{spec}).value();
  actors();
  state_.step(PortNotRequested{job});
  pass(1s);
  state_.step(Tick{});
  EXPECT_EQ(taken<FindPortOn>().size(), 1u);
  ASSERT_TRUE(state_.step(JobStopped{job, false}));
  state_.step(PortNotRequested{job});
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
}

TEST_F(ClusterStateTest, NothingIsPlacedOnANodeWhileItsConnectionIsGone) {
  const JobId job = driver();
  const NodeId node = join(1, {{"CPU", 1}});
  state_.step(NodeAway{node});
  ASSERT_TRUE(state_.step(GangRequested{gang(job, 1, {{"CPU", 1}}, true)}));  // feasible: the node is only away
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
  actors::RegisterNode again;
  again.id = node;
  ASSERT_TRUE(state_.step(NodeJoined{again}));
  EXPECT_EQ(taken<StartWorkerOn>().size(), 1u);
}

TEST_F(ClusterStateTest, AReportedWorkerExistsEvenIfItsAnswerWasLost) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  state_.step(WorkerNotStarted{s.message.worker, 126, unavailable("the connection broke")});
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kAlive);
}

TEST_F(ClusterStateTest, AnUnwantedWorkerIsEndedWhenReported) {
  const JobId job = driver();
  const NodeId node = join(1, {{"CPU", 3}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  ASSERT_TRUE(state_.step(ActorKilled{g.actors[0].id}));
  actors::JobSpec spec;
  spec.resources = of({{"CPU", 1}});
  const JobId stopped = state_.step(JobSubmitted{spec}).value();
  const auto process = taken<StartWorkerOn>().at(0);
  state_.step(WorkerUpdated{node, {WorkerId{55}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
  ASSERT_TRUE(state_.step(JobStopped{stopped, false}));
  actors();
  ready(s);
  EXPECT_EQ(taken<StopWorkerOn>().at(0).message.signal, SIGKILL);
  ready(process);
  EXPECT_EQ(taken<StopWorkerOn>().at(0).message.signal, SIGTERM);
  state_.step(DriverEnded{job});
  actors();
  actors::RegisterNode again;
  again.id = node;
  ASSERT_TRUE(state_.step(NodeJoined{again}));
  EXPECT_EQ(taken<EndJobOn>().size(), 1u);
  state_.step(WorkerUpdated{node, {WorkerId{55}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
  EXPECT_TRUE(taken<StopWorkerOn>().empty());  // a driver that has left belongs to its user
}

}  // namespace
}  // namespace shoal::scheduler
