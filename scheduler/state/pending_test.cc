// Turns among waiting jobs, and room that is kept for large requests.
#include <csignal>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class PendingTest : public ClusterStateTest {
 protected:
  // Asks for `count` actors of `cpus` CPUs each, one after the other.
  std::vector<GangSpec> ask(JobId job, int count, double cpus = 1) {
    std::vector<GangSpec> out;
    for (int i = 0; i < count; ++i) {
      out.push_back(gang(job, 1, {{"CPU", cpus}}));
      EXPECT_TRUE(state_.step(GangRequested{out.back()}));
    }
    return out;
  }
  // Workers started since the last call.
  std::vector<StartWorkerOn> started() {
    auto out = taken<StartWorkerOn>();
    for (const auto& s : out) ready(s);
    running_.insert(running_.end(), out.begin(), out.end());
    return out;
  }
  // The jobs of the workers started since the last call, in order.
  std::string who() {
    std::string out;
    for (const auto& s : started()) out += names_.at(s.message.job);
    return out;
  }
  // Ends the first running worker of the job.
  void ends(JobId job) {
    const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.message.job == job; });
    ASSERT_NE(it, running_.end());
    const StartWorkerOn s = *it;
    running_.erase(it);
    dies(s, 1, "over");
  }
  JobId job(const std::string& name) {
    const JobId out = driver();
    names_[out] = name;
    return out;
  }
  void ticks(runtime::Duration time) {
    for (runtime::Duration t{}; t < time; t += 1s) {
      pass(1s);
      for (const NodeId n : state_.alive_nodes()) state_.step(NodeBeat{n});
      state_.step(Tick{});
    }
  }

  std::map<JobId, std::string> names_;
  std::vector<StartWorkerOn> running_;
};

TEST_F(PendingTest, PendingJobsTakeTurnsInAnyOrderOfArrival) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a"), b = job("b");
  ask(a, 8);
  EXPECT_EQ(who(), "aa");
  ask(b, 3);
  EXPECT_EQ(who(), "");
  ends(a);
  EXPECT_EQ(who(), "b");  // b holds less
  ends(a);
  EXPECT_EQ(who(), "a");  // a holds nothing and is first
  ends(b);
  EXPECT_EQ(who(), "b");
  ends(a);
  EXPECT_EQ(who(), "a");
}

TEST_F(PendingTest, ResourcesFreedTogetherAreSharedByTheJobsShares) {
  join(1, {{"CPU", 8}});
  const JobId a = job("a"), b = job("b"), c = job("c");
  ask(c, 1, 3);
  ask(a, 1, 5);
  EXPECT_EQ(who(), "ca");
  ask(a, 5);
  ask(b, 5);
  ends(a);
  EXPECT_EQ(who(), "ababa");  // c waits for nothing
  const JobId d = job("d");
  ask(c, 5);
  ask(d, 5);
  ends(a);
  EXPECT_EQ(who(), "d");  // shares: a 2, b 2, c 3, d 0
  ends(b);
  EXPECT_EQ(who(), "b");  // shares: a 2, b 1, c 3, d 1; b came before d
}

class LentTest : public PendingTest {
 protected:
  void SetUp() override { join(1, {{"CPU", 3}}); }
  // Starts workers of remote functions with one CPU each.
  void functions(JobId job, int count) {
    for (int i = 0; i < count; ++i) {
      auto g = gang(job, 1, {{"CPU", 1}});
      g.actors[0].class_name = actors::kFunctionWorker;
      EXPECT_TRUE(state_.step(GangRequested{g}));
    }
    started();
  }
};

TEST_F(LentTest, WorkersOfFunctionsAreReclaimedByJobsWithASmallerShare) {
  const JobId a = job("a"), b = job("b");
  functions(a, 3);
  EXPECT_FALSE(state_.wanted_back(a));
  ask(b, 1);
  EXPECT_TRUE(state_.wanted_back(a));
  EXPECT_FALSE(state_.wanted_back(b));  // b has no workers
  ends(a);
  EXPECT_EQ(who(), "b");
  EXPECT_FALSE(state_.wanted_back(a));
  functions(b, 1);  // a has two, b one
  EXPECT_TRUE(state_.wanted_back(a));
  ends(a);
  EXPECT_EQ(who(), "b");
  ask(a, 1);  // a has one, b two: an actor and a function
  EXPECT_TRUE(state_.wanted_back(b));
  ends(b);
  EXPECT_EQ(who(), "a");
  ask(a, 1);  // a has two now
  EXPECT_FALSE(state_.wanted_back(b));
}

TEST_F(LentTest, WorkersOfFunctionsAreReclaimedByTheirOwnJobsPendingRequests) {
  const JobId a = job("a");
  functions(a, 3);
  ask(a, 1, 2);
  EXPECT_TRUE(state_.wanted_back(a));
}

TEST_F(LentTest, WorkersOfFunctionsAreNotReclaimedWithoutSufficientRoom) {
  const JobId a = job("a"), b = job("b");
  ask(a, 1);  // an actor keeps its CPU
  started();
  functions(a, 2);
  ask(b, 1, 3);
  EXPECT_FALSE(state_.wanted_back(a));
  ask(b, 1, 2);
  EXPECT_TRUE(state_.wanted_back(a));
}

// Equal entries are explained once, however many there are.
TEST_F(PendingTest, APendingRequestHasItsReasonFromTheStart) {
  join(1, {{"CPU", 1}});
  const JobId a = job("a");
  const auto alike = ask(a, 1000);
  for (std::size_t i = 1; i < alike.size(); ++i) {
    EXPECT_NE(state_.actor(alike[i].actors[0].id)->pending_reason.find("lacks CPU 1 (0 of 1 free)"), std::string::npos) << i;
  }
  std::vector<GangSpec> others;
  for (int i = 2; i < 52; ++i) others.push_back(ask(a, 1, i).front());
  EXPECT_NE(state_.actor(others.front().actors[0].id)->pending_reason, "");
  EXPECT_EQ(state_.actor(others.back().actors[0].id)->pending_reason, "");  // a few more are explained per tick
  for (int i = 0; i < 4; ++i) state_.step(Tick{});
  EXPECT_NE(state_.actor(others.back().actors[0].id)->pending_reason.find("lacks CPU 51 (has 1)"), std::string::npos);
  actors::GroupSpec group;
  group.id = GroupId{7};
  group.job = a;
  group.bundles = {of({{"CPU", 3}})};
  ASSERT_TRUE(state_.step(GroupRequested{group}));
  EXPECT_NE(state_.group(group.id)->pending_reason.find("lacks CPU"), std::string::npos) << state_.group(group.id)->pending_reason;
  actors::JobSpec spec;
  spec.wait = true;
  spec.resources = of({{"CPU", 9}});
  const auto submitted = state_.step(JobSubmitted{spec});
  ASSERT_TRUE(submitted);
  EXPECT_NE(state_.job(*submitted)->pending_reason.find("lacks CPU"), std::string::npos) << state_.job(*submitted)->pending_reason;
  EXPECT_TRUE(taken<Warn>().empty());
}

// The reason shows whether to wait or to act.
TEST_F(PendingTest, BusyAndInfeasibleRequestsHaveDifferentTexts) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a");
  ask(a, 2);
  started();
  const auto reason = [&](const GangSpec& g) { return state_.actor(g.actors[0].id)->pending_reason; };
  EXPECT_EQ(reason(ask(a, 1, 2).front()),
            "waits for others to end, then starts by itself: needs CPU 2; nearest fit: node 0000000000000001 lacks CPU 2 (0 of 2 free)");
  EXPECT_EQ(reason(ask(a, 1, 3).front()),
            "can never start on the nodes that there are: needs CPU 3; nearest fit: node 0000000000000001 lacks CPU 3 (has 2). Add a node "
            "that can hold it (shoal start --address ..), or ask for less");
  actors::GroupSpec group;
  group.id = GroupId{7};
  group.job = a;
  group.bundles = {of({{"CPU", 1}}), of({{"CPU", 1}})};
  ASSERT_TRUE(state_.step(GroupRequested{group}));
  EXPECT_TRUE(state_.group(group.id)->pending_reason.starts_with("waits for others to end")) << state_.group(group.id)->pending_reason;
  group.id = GroupId{8};
  group.bundles = {of({{"CPU", 2}}), of({{"CPU", 1}})};
  ASSERT_TRUE(state_.step(GroupRequested{group}));
  EXPECT_TRUE(state_.group(group.id)->pending_reason.starts_with("can never start")) << state_.group(group.id)->pending_reason;
}

TEST_F(PendingTest, LentCpusDoNotMakeFreeCpusNegative) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a");
  ask(a, 2);
  const auto first = started();
  for (const auto& s : first) state_.step(WorkerBlocked{s.message.worker, true});
  ask(a, 2);
  started();
  for (const auto& s : first) state_.step(WorkerBlocked{s.message.worker, false});
  const auto waits = ask(a, 1);
  const std::string why = state_.actor(waits[0].actors[0].id)->pending_reason;
  EXPECT_NE(why.find("(0 of 2 free)"), std::string::npos) << why;
}

TEST_F(LentTest, CpusThatWereLentAreHadAgainWhereThereIsRoomForThem) {
  const JobId a = job("a"), b = job("b");
  functions(a, 2);
  const WorkerId worker = running_.at(0).message.worker;
  EXPECT_TRUE(state_.step(WorkerResumes{worker}));  // its CPUs are not lent
  state_.step(WorkerBlocked{worker, true});
  ask(b, 1, 2);  // the free CPU and the lent one
  started();
  const auto refused = state_.step(WorkerResumes{worker});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kResourceExhausted);
  ends(b);
  EXPECT_TRUE(state_.step(WorkerResumes{worker}));
  ask(b, 1);
  EXPECT_EQ(who(), "b");  // only one CPU is free
  ask(b, 1);
  EXPECT_EQ(who(), "");
  state_.step(WorkerBlocked{worker, true});
  EXPECT_EQ(who(), "b");
  EXPECT_FALSE(state_.step(WorkerResumes{WorkerId{99}}));
}

TEST_F(PendingTest, AFunctionThatWaitsIsCalledByItsName) {
  join(1, {{"CPU", 1}});
  const JobId a = job("a");
  ask(a, 1);
  auto g = gang(a, 1, {{"CPU", 1}});
  g.actors[0].class_name = std::string(actors::kFunctionWorker) + ": train_step";
  ASSERT_TRUE(state_.step(GangRequested{g}));
  EXPECT_TRUE(state_.status().pending.at(0).starts_with("function train_step: waits")) << state_.status().pending.at(0);
  started();
  ticks(2s);
  const auto warned = taken<Warn>();
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_TRUE(warned[0].text.starts_with("function train_step is pending: waits")) << warned[0].text;
  ends(a);
  // The process runs other functions as well, so its label is not the function's name.
  EXPECT_EQ(started().at(0).message.label, actors::kFunctionWorker);
}

// After a successful job, no row looks like a failure.
TEST_F(PendingTest, AnActorThatEndsWithItsJobHasThatCause) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a");
  const auto gangs = ask(a, 1);
  const auto s = started().at(0);
  state_.step(DriverEnded{a});
  dies(s, 128 + SIGKILL, "was killed by SIGKILL");
  EXPECT_EQ(state_.actor(gangs[0].actors[0].id)->cause->message(), "actor A is gone: its job ended");
  const auto workers = state_.list({actors::ListRequest::What::kWorkers, {}, 0}).workers;
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].cause->message(), "ended with its job");
}

TEST_F(PendingTest, AShareIsOfTheDominantResource) {
  join(1, {{"CPU", 100}, {"GPU", 2}});
  const JobId a = job("a"), b = job("b");
  ASSERT_TRUE(state_.step(GangRequested{gang(a, 1, {{"GPU", 1}, {"CPU", 1}})}));
  ask(b, 1, 99);
  EXPECT_EQ(who(), "ab");
  const auto more = ask(a, 1);
  ask(b, 1);
  ends(b);
  EXPECT_EQ(who(), "ba");  // room for both: b holds nothing, a holds half of the GPUs
  EXPECT_EQ(state_of(more[0].actors[0].id), ActorState::kAlive);
}

TEST_F(PendingTest, AGangIsPlacedTogetherAndOthersMayOvertakeIt) {
  join(1, {{"CPU", 4}});
  const JobId a = job("a"), b = job("b");
  ask(a, 4);
  EXPECT_EQ(who(), "aaaa");
  const GangSpec large = gang(b, 3, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{large}));
  ask(a, 4);
  ends(a);
  EXPECT_EQ(who(), "a");  // b's turn, but one CPU is too little for its gang
  ends(a);
  EXPECT_EQ(who(), "a");
}

TEST_F(PendingTest, RoomIsKeptForALargeGangThatWasPassedOverForLong) {
  join(1, {{"CPU", 3}});
  const JobId a = job("a"), b = job("b");
  ask(a, 3);
  EXPECT_EQ(who(), "aaa");
  const GangSpec large = gang(b, 3, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{large}));
  ask(a, 100);
  const auto free = gang(a, 1, {});
  for (int i = 0; i < 29; ++i) {  // within `patience`
    ticks(1s);
    ends(a);
    EXPECT_EQ(who(), "a");
  }
  ticks(2s);
  ends(a);
  EXPECT_EQ(who(), "");  // room is kept
  ASSERT_TRUE(state_.step(GangRequested{free}));
  EXPECT_EQ(who(), "a");  // asks for nothing that the gang wants
  running_.pop_back();
  ends(a);
  ends(a);
  EXPECT_EQ(who(), "bbb");
  for (int i = 0; i < 3; ++i) ends(b);
  EXPECT_EQ(who(), "aaa");  // the window is over
}

TEST_F(PendingTest, AWindowEndsAndOthersHaveTheirTurn) {
  join(1, {{"CPU", 3}});
  const JobId a = job("a"), b = job("b");
  ask(a, 1);  // runs for ever
  ask(a, 1);
  EXPECT_EQ(who(), "aa");
  const GangSpec large = gang(b, 1, {{"CPU", 3}});
  ASSERT_TRUE(state_.step(GangRequested{large}));
  ticks(31s);
  const auto more = ask(a, 1);
  EXPECT_EQ(who(), "");  // the free room is kept
  ticks(2s);             // explained by a tick
  EXPECT_NE(state_.actor(more[0].actors[0].id)->pending_reason.find("waits its turn: what is free is kept for actor A"), std::string::npos)
      << state_.actor(more[0].actors[0].id)->pending_reason;
  ticks(8s);
  EXPECT_EQ(who(), "a");  // the first window, of 10 s, is over
  running_.erase(running_.begin());
  ticks(30s);  // the others' turn
  EXPECT_EQ(who(), "");
  ticks(1s);
  ends(a);
  ends(a);
  ask(a, 3);
  EXPECT_EQ(who(), "");  // the second window, of 20 s
  ticks(15s);
  EXPECT_EQ(who(), "");
  ticks(6s);
  EXPECT_EQ(who(), "aa");
}

TEST_F(PendingTest, NoRoomIsKeptForInfeasibleOrEndedRequests) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a"), b = job("b");
  ask(b, 1, 5);  // never fits
  ask(a, 2);
  EXPECT_EQ(who(), "aa");
  const GangSpec large = gang(b, 1, {{"CPU", 2}});
  ASSERT_TRUE(state_.step(GangRequested{large}));
  ask(a, 2);
  ticks(32s);
  ends(a);
  EXPECT_EQ(who(), "");  // room is kept for b's second gang
  ASSERT_TRUE(state_.step(ActorKilled{large.actors[0].id}));
  ticks(1s);
  EXPECT_EQ(who(), "a");
}

TEST_F(PendingTest, AReasonWithALongNameFitsItsRow) {
  join(1, {{"CPU", 2}});
  const JobId a = job("a");
  ask(a, 1);
  actors::JobSpec large;
  large.name = std::string(actors::RowBounds::kMaxText, 'n');
  large.resources = of({{"CPU", 2}});
  ASSERT_TRUE(state_.step(JobSubmitted{large}));
  EXPECT_EQ(state_.status().num_jobs, 1u) << "a job that waits does not run";
  ticks(32s);
  const auto more = ask(a, 1);
  ticks(2s);
  const std::string why = state_.actor(more[0].actors[0].id)->pending_reason;
  EXPECT_LE(why.size(), actors::RowBounds::kMaxText);
  EXPECT_TRUE(why.starts_with("waits its turn") && why.ends_with("which has waited for long")) << why;
}

TEST_F(PendingTest, APackageIsNeededByWhatLivesOrWaits) {
  const std::string living(64, 'a'), waits(64, 'b'), ended(64, 'c'), other(64, 'd');
  auto g = gang(job("a"), 1, {{"CPU", 1}});
  g.launch.env = {{"SHOAL_ENV", "x/" + living + ".zip"}};
  ASSERT_TRUE(state_.step(GangRequested{g}));
  actors::JobSpec spec;
  spec.wait = true;
  spec.launch.env = {{"SHOAL_ENV", ended}};
  ASSERT_TRUE(state_.step(JobStopped{state_.step(JobSubmitted{spec}).value(), true}));
  spec.launch.env = {{"SHOAL_ENV", "0" + waits}};
  ASSERT_TRUE(state_.step(JobSubmitted{spec}));
  EXPECT_EQ(state_.mentioned({living, waits, ended, other}), (std::set<std::string>{living, waits}));
}

TEST_F(PendingTest, AGangHasAnId) {
  auto g = gang(job("a"), 1, {{"CPU", 1}});
  g.id = {};
  EXPECT_FALSE(state_.step(GangRequested{g}));
}

}  // namespace
}  // namespace shoal::scheduler
