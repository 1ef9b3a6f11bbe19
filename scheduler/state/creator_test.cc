// Actors end with the process that made them.
#include <algorithm>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class CreatorTest : public ClusterStateTest {
 protected:
  CreatorTest() {
    join(1, {{"CPU", 4}});
    job_ = driver();
  }
  GangSpec made_by(WorkerId creator, const std::string& class_name = "Child", int count = 1) {
    GangSpec g = gang(job_, count, {{"CPU", 1}});
    for (auto& a : g.actors) a.class_name = class_name;
    g.creator = creator;
    return g;
  }
  // Starts a gang and returns its first process, which takes calls.
  StartWorkerOn lives(const GangSpec& g) {
    EXPECT_TRUE(state_.step(GangRequested{g}));
    const auto started = taken<StartWorkerOn>();
    EXPECT_EQ(started.size(), g.actors.size());
    for (const auto& s : started) ready(s);
    actors();
    return started.at(0);
  }
  StartWorkerOn parent(int max_restarts = 0) {
    GangSpec g = made_by({}, "Parent");
    g.max_restarts = max_restarts;
    parent_ = g.actors[0].id;
    return lives(g);
  }
  static WorkerId process(const StartWorkerOn& s) { return s.message.worker; }
  ActorState state_of(const GangSpec& g) { return ClusterStateTest::state_of(g.actors[0].id); }
  std::string cause_of(const GangSpec& g) {
    const auto* row = state_.actor(g.actors[0].id);
    return row->cause ? row->cause->message() : "";
  }
  std::vector<WorkerId> stopped() {
    std::vector<WorkerId> out;
    for (const auto& s : taken<StopWorkerOn>()) out.push_back(s.message.worker);
    return out;
  }

  JobId job_;
  ActorId parent_;
};

TEST_F(CreatorTest, AnActorsChildrenEndWithItsProcessAndHaveThatCause) {
  const auto p = parent();
  GangSpec child = made_by(process(p));
  child.name = "named";
  const auto c = lives(child);
  const GangSpec waits = made_by(process(p), "Waits", 3);
  ASSERT_TRUE(state_.step(GangRequested{waits}));
  const GangSpec other = made_by({}, "Other");
  lives(other);
  actors();
  dies(p, 137, "was killed by SIGKILL");
  EXPECT_EQ(stopped(), std::vector<WorkerId>{process(c)});
  EXPECT_EQ(cause_of(child), "actor Child died: its creator, actor Parent(" + to_string(parent_) + "), ended: was killed by SIGKILL");
  EXPECT_EQ(state_.actor(child.actors[0].id)->cause->reason(), "ActorDied");
  EXPECT_FALSE(state_.find({"named", ""}));
  for (const auto& a : waits.actors) EXPECT_EQ(ClusterStateTest::state_of(a.id), ActorState::kDead);
  EXPECT_EQ(state_of(other), ActorState::kAlive);
  dies(c, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_.status().available, of({{"CPU", 3}}));
  EXPECT_EQ(state_.job(job_)->state, JobState::kRunning);
}

TEST_F(CreatorTest, AllMembersOfAGangEndAndThenTheirChildren) {
  const auto p = parent();
  const GangSpec gang = made_by(process(p), "Child", 2);
  const auto first = lives(gang);
  const GangSpec grandchild = made_by(process(first), "Grandchild");
  const auto g = lives(grandchild);
  dies(p, 0, "");  // an orderly end
  EXPECT_EQ(stopped().size(), 2u);
  for (const auto& a : gang.actors) EXPECT_EQ(ClusterStateTest::state_of(a.id), ActorState::kDead);
  EXPECT_EQ(state_of(grandchild), ActorState::kAlive);  // its creator's process still runs
  dies(first, 137, "was killed by SIGKILL");
  EXPECT_EQ(stopped(), std::vector<WorkerId>{process(g)});
  EXPECT_EQ(cause_of(grandchild), "actor Grandchild died: its creator, actor Child(" + to_string(gang.actors[0].id) +
                                      "), ended: its creator, actor Parent(" + to_string(parent_) + "), ended: its process ended");
}

TEST_F(CreatorTest, AKilledActorsChildrenEndWithItsProcess) {
  const auto p = parent();
  const GangSpec early = made_by(process(p)), late = made_by(process(p));
  lives(early);
  ASSERT_TRUE(state_.step(ActorKilled{parent_}));
  EXPECT_EQ(state_of(early), ActorState::kAlive);
  ASSERT_TRUE(state_.step(GangRequested{late}));  // a request under way
  dies(p, 137, "was killed by SIGKILL");
  const std::string why = "its creator, actor Parent(" + to_string(parent_) + "), ended: it was killed by shoal.kill";
  EXPECT_EQ(cause_of(early), "actor Child died: " + why);
  EXPECT_EQ(cause_of(late), "actor Child died: " + why);
}

TEST_F(CreatorTest, ChildrenOfAFormerProcessEndBeforeTheRestartedOneMakesMore) {
  auto p = parent(-1);
  for (int life = 0; life < 3; ++life) {
    GangSpec child = made_by(process(p), "Child", 3);
    const auto started = [&] {
      EXPECT_TRUE(state_.step(GangRequested{child}));
      return taken<StartWorkerOn>();
    }();
    ASSERT_EQ(started.size(), 3u);  // the node has room after each restart
    for (const auto& s : started) ready(s);
    dies(p, 137, "was killed by SIGKILL");
    EXPECT_EQ(state_of(child), ActorState::kDead);
    EXPECT_EQ(ClusterStateTest::state_of(parent_), ActorState::kStarting);
    p = taken<StartWorkerOn>().at(0);
    ready(p);
    for (const auto& s : started) dies(s, 137, "was killed by SIGKILL");
    pass(20s);  // so that no death counts as early
    state_.step(NodeBeat{NodeId{1}});
  }
  ASSERT_TRUE(state_.step(ActorKilled{parent_, true}));
  dies(p, 137, "was killed by SIGKILL");
  EXPECT_EQ(taken<StartWorkerOn>().size(), 1u);
}

TEST_F(CreatorTest, AChildThatWasToBeStartedAgainIsNot) {
  const auto p = parent();
  GangSpec child = made_by(process(p));
  child.max_restarts = -1;
  const auto c = lives(child);
  dies(c, 137, "was killed by SIGKILL");
  const auto again = taken<StartWorkerOn>();
  ASSERT_EQ(again.size(), 1u);  // the same creator as before
  ready(again[0]);
  dies(again[0], 137, "was killed by SIGKILL");
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
  EXPECT_EQ(state_of(child), ActorState::kRestarting);  // restarts after a pause
  dies(p, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_of(child), ActorState::kDead);
  pass(20s);
  state_.step(NodeBeat{NodeId{1}});
  state_.step(Tick{});
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
}

TEST_F(CreatorTest, AnEndedProcessMakesNothing) {
  const auto p = parent();
  dies(p, 137, "was killed by SIGKILL");
  const GangSpec late = made_by(process(p));
  EXPECT_EQ(state_.step(GangRequested{late}).error().reason(), "CreatorEnded");
  EXPECT_EQ(state_.step(GangRequested{late}).error().code(), Code::kCancelled);
  EXPECT_EQ(state_.actor(late.actors[0].id), nullptr);
  EXPECT_EQ(state_.step(GangRequested{made_by(WorkerId{77})}).error().reason(), "CreatorEnded");
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
  GangSpec detached = made_by(process(p));
  detached.detached = true;
  EXPECT_TRUE(state_.step(GangRequested{detached}));
}

TEST_F(CreatorTest, ADetachedActorHasNoCreator) {
  const auto p = parent();
  GangSpec detached = made_by(process(p));
  detached.detached = true;
  lives(detached);
  dies(p, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_of(detached), ActorState::kAlive);
}

TEST_F(CreatorTest, ChildrenOfADriverOrARankEndWithTheJob) {
  const WorkerId script{50}, rank{51};
  const auto is = [&](WorkerId w, const std::string& role, WorkerState state, std::optional<Error> cause = {}) {
    state_.step(WorkerUpdated{NodeId{1}, {w, state, 500, "", cause ? 1 : 0, cause, job_, role}});
  };
  is(script, "driver", WorkerState::kRunning);
  is(rank, "rank 1", WorkerState::kRunning);
  const GangSpec of_rank = made_by(rank), of_driver = made_by(script);
  lives(of_rank);
  lives(of_driver);
  is(rank, "rank 1", WorkerState::kExited, unavailable("was killed by SIGKILL"));
  EXPECT_EQ(state_of(of_rank), ActorState::kAlive);
  is(script, "driver", WorkerState::kExited, unavailable("was killed by SIGKILL"));
  EXPECT_NE(cause_of(of_rank).find("its job ended"), std::string::npos);
  EXPECT_NE(cause_of(of_driver).find("its job ended"), std::string::npos);
}

TEST_F(CreatorTest, ALostNodeEndsTheChildrenOfItsProcesses) {
  const auto p = parent();
  join(2, {{"CPU", 4}});
  GangSpec near = made_by(process(p)), far = made_by(process(p));
  near.max_restarts = far.max_restarts = -1;
  far.where.node = NodeId{2};
  lives(near);
  const auto f = lives(far);
  pass(4s);
  state_.step(NodeBeat{NodeId{2}});
  pass(2s);
  state_.step(Tick{});
  EXPECT_EQ(state_of(near), ActorState::kDead);
  EXPECT_EQ(state_of(far), ActorState::kDead);
  EXPECT_NE(cause_of(far).find("stopped answering"), std::string::npos) << cause_of(far);
  const auto ended = stopped();
  EXPECT_TRUE(std::find(ended.begin(), ended.end(), process(f)) != ended.end());
}

// ---- workers of remote functions

const std::string kFunctions = std::string(actors::kFunctionWorker) + ": train_step";  // a label that includes the function's name

TEST_F(CreatorTest, AFunctionWorkersDeathEndsItsChildren) {
  const auto keeper = parent();
  const GangSpec functions = made_by(process(keeper), kFunctions);
  const auto f = lives(functions);
  const GangSpec child = made_by(process(f));
  lives(child);
  dies(f, 1, "exited with code 1");
  EXPECT_EQ(cause_of(child), "actor Child died: its creator, a worker of remote functions, ended: exited with code 1");
}

TEST_F(CreatorTest, ARetiredWorkersChildrenPassToItsOwner) {
  const auto keeper = parent();
  const GangSpec outer = made_by(process(keeper), kFunctions);
  const auto o = lives(outer);
  const GangSpec inner = made_by(process(o), kFunctions);
  const auto i = lives(inner);
  const GangSpec child = made_by(process(i));
  lives(child);
  ASSERT_TRUE(state_.step(WorkerRetired{outer.actors[0].id}));
  dies(o, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_of(inner), ActorState::kDead);  // its keeper has ended
  dies(i, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_of(child), ActorState::kAlive);
  ASSERT_TRUE(state_.step(WorkerRetired{outer.actors[0].id}));  // a repeated request without effect
  dies(keeper, 137, "was killed by SIGKILL");
  EXPECT_NE(cause_of(child).find("its creator, actor Parent("), std::string::npos) << cause_of(child);
}

TEST_F(CreatorTest, OnlyAWorkerOfFunctionsIsRetired) {
  const GangSpec actor = made_by({});
  const GangSpec child = made_by(process(lives(actor)));
  lives(child);
  const auto retired = state_.step(WorkerRetired{actor.actors[0].id});
  ASSERT_FALSE(retired);
  EXPECT_EQ(retired.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(state_.step(WorkerRetired{ActorId{77}}).error().code(), Code::kNotFound);
  ASSERT_TRUE(state_.step(ActorKilled{actor.actors[0].id}));
  EXPECT_EQ(state_of(actor), ActorState::kDead);
}

TEST_F(CreatorTest, ARetiredWorkersPendingChildrenEndWithIt) {
  const GangSpec functions = made_by({}, kFunctions);
  const auto f = lives(functions);
  const GangSpec starts = made_by(process(f)), waits = made_by(process(f), "Child", 4);
  ASSERT_TRUE(state_.step(GangRequested{starts}));
  ASSERT_TRUE(state_.step(GangRequested{waits}));
  EXPECT_EQ(state_of(starts), ActorState::kStarting);
  EXPECT_EQ(state_of(waits), ActorState::kPending);
  ASSERT_TRUE(state_.step(WorkerRetired{functions.actors[0].id}));
  dies(f, 137, "was killed by SIGKILL");
  for (const auto& g : {starts, waits}) EXPECT_NE(cause_of(g).find("its creator, a worker of remote functions, ended"), std::string::npos);
}

TEST_F(CreatorTest, ChildrenOfADriversRetiredWorkerEndWithTheJob) {
  const GangSpec functions = made_by({}, kFunctions);
  const auto f = lives(functions);
  const GangSpec child = made_by(process(f));
  lives(child);
  ASSERT_TRUE(state_.step(WorkerRetired{functions.actors[0].id}));
  dies(f, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_of(child), ActorState::kAlive);
  state_.step(DriverEnded{job_});
  EXPECT_EQ(state_of(child), ActorState::kDead);
}

}  // namespace
}  // namespace shoal::scheduler
