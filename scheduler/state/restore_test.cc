// A head that continues from the stored state of another.
#include <array>
#include <csignal>
#include <optional>

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class RestoreTest : public ClusterStateTest {
 protected:
  // Ends the head, losing the actions it has not performed, and restores the next one.
  ClusterState& next_head() {
    check();
    random_again_.emplace(7);
    again_.emplace(ClusterState::Options(), *random_again_);
    again_->advance(now_, unix_ms_);
    again_->restore(store_->load().value());
    EXPECT_TRUE(again_->set_aside().empty());
    EXPECT_TRUE(again_->take_actions().empty());
    return *again_;
  }
  void join_again(std::uint64_t id, const std::map<std::string, double>& has) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.host = "127.0.0.1";
    n.resources = of(has);
    EXPECT_TRUE(again_->step(NodeJoined{n}));
  }
  void tells(const StartWorkerOn& s, WorkerState state, pid_t pid, const std::string& endpoint = "", int code = 0) {
    std::optional<Error> cause;
    if (code != 0) cause = unavailable("was killed");
    again_->step(WorkerUpdated{s.node, {s.message.worker, state, pid, endpoint, code, cause, {}, {}}});
  }
  template <class T>
  std::vector<T> taken_again() {
    again_->check_invariants();
    std::vector<T> out;
    for (auto& a : again_->take_actions()) {
      if (auto* t = std::get_if<T>(&a)) out.push_back(std::move(*t));
    }
    return out;
  }

  std::optional<runtime::SeededRandom> random_again_;
  std::optional<ClusterState> again_;
};

TEST_F(RestoreTest, RunningWorkContinuesAndNodesGetWorkOnlyAfterTheyReconnect) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  ClusterState& head = next_head();
  EXPECT_EQ(head.actor(g.actors[0].id)->state, ActorState::kAlive);
  EXPECT_EQ(head.actor(g.actors[0].id)->endpoint, "unix:@w");
  EXPECT_EQ(head.status().available, of({{"CPU", 1}}));
  const auto more = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(head.step(GangRequested{more}));
  EXPECT_TRUE(taken_again<StartWorkerOn>().empty());
  join_again(1, {{"CPU", 2}});
  EXPECT_EQ(taken_again<StartWorkerOn>().size(), 1u);
  tells(s, WorkerState::kRunning, 1000, "unix:@w");
  head.step(NodeBeat{NodeId{1}});
  EXPECT_EQ(head.actor(g.actors[0].id)->state, ActorState::kAlive);
  EXPECT_TRUE(taken_again<StartWorkerOn>().empty());
}

TEST_F(RestoreTest, AWorkerThatWasToBeStartedAndIsUnknownToItsNodeIsStartedThenOnce) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  const auto received = gang(job, 1, {{"CPU", 1}}), unheard = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{received}));
  const auto first = taken<StartWorkerOn>().at(0);
  ASSERT_TRUE(state_.step(GangRequested{unheard}));
  const auto second = taken<StartWorkerOn>().at(0);
  ClusterState& head = next_head();
  join_again(1, {{"CPU", 2}});
  tells(first, WorkerState::kStarting, 0);
  EXPECT_TRUE(taken_again<StartWorkerOn>().empty());  // the node may report more workers
  head.step(NodeBeat{NodeId{1}});
  const auto started = taken_again<StartWorkerOn>();
  ASSERT_EQ(started.size(), 1u);
  EXPECT_EQ(started[0].message.worker, second.message.worker);
  EXPECT_EQ(started[0].message.label, second.message.label);
  EXPECT_EQ(started[0].message.launch, second.message.launch);
  head.step(NodeBeat{NodeId{1}});
  EXPECT_TRUE(taken_again<StartWorkerOn>().empty());
}

TEST_F(RestoreTest, AProcessThatItsNodeDoesNotKnowAnyMoreHasEnded) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  auto g = gang(job, 1, {{"CPU", 1}});
  g.max_restarts = 1;
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  ClusterState& head = next_head();
  join_again(1, {{"CPU", 1}});
  head.step(NodeBeat{NodeId{1}});
  const auto again = taken_again<StartWorkerOn>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_NE(again[0].message.worker, s.message.worker);
  EXPECT_EQ(head.actor(g.actors[0].id)->num_restarts, 1u);
  EXPECT_TRUE(std::find(again[0].message.launch.env.begin(), again[0].message.launch.env.end(),
                        std::pair<std::string, std::string>("SHOAL_RESTARTS", "1")) != again[0].message.launch.env.end());
}

TEST_F(RestoreTest, AProcessesChildrenEndWithItUnderTheNextHead) {
  const JobId job = driver();
  join(1, {{"CPU", 3}});
  const auto parent = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{parent}));
  const auto p = taken<StartWorkerOn>().at(0);
  ready(p);
  auto child = gang(job, 1, {{"CPU", 1}}), late = gang(job, 1, {{"CPU", 1}});
  child.creator = late.creator = p.message.worker;
  ASSERT_TRUE(state_.step(GangRequested{child}));
  const auto c = taken<StartWorkerOn>().at(0);
  ready(c);
  ClusterState& head = next_head();
  join_again(1, {{"CPU", 3}});
  tells(c, WorkerState::kRunning, 1000, "unix:@w");
  EXPECT_EQ(head.actor(child.actors[0].id)->state, ActorState::kAlive);
  head.step(NodeBeat{NodeId{1}});  // the creator was not reported
  EXPECT_NE(head.actor(child.actors[0].id)->cause->message().find("its creator, actor A("), std::string::npos);
  const auto stopped = taken_again<StopWorkerOn>();
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].message.worker, c.message.worker);
  EXPECT_EQ(head.step(GangRequested{late}).error().reason(), "CreatorEnded");
  EXPECT_TRUE(head.step(GangRequested{child}));  // a repeated request of its creator
  EXPECT_TRUE(taken_again<StartWorkerOn>().empty());
}

TEST_F(RestoreTest, PendingRequestsKeepTheirOrder) {
  const JobId job = driver();
  std::vector<GangSpec> gangs;
  for (int i = 0; i < 5; ++i) {
    gangs.push_back(gang(job, 1, {{"CPU", 1}}));
    gangs.back().id = GangId{1000 - static_cast<std::uint64_t>(i)};  // ids are in no order
    ASSERT_TRUE(state_.step(GangRequested{gangs.back()}));
  }
  next_head();
  for (std::uint64_t i = 0; i < gangs.size(); ++i) {
    join_again(50 + i, {{"CPU", 1}});
    const auto started = taken_again<StartWorkerOn>();
    ASSERT_EQ(started.size(), 1u);
    EXPECT_EQ(again_->actor(gangs[i].actors[0].id)->state, ActorState::kStarting);
  }
}

TEST_F(RestoreTest, NamesGroupsAndBundlesAreRestored) {
  const JobId job = driver();
  join(1, {{"CPU", 3}});
  actors::GroupSpec group;
  group.id = GroupId{5};
  group.job = job;
  group.name = "pair";
  group.bundles = {of({{"CPU", 2}})};
  ASSERT_TRUE(state_.step(GroupRequested{group}));
  auto named = gang(job, 1, {{"CPU", 1}});
  named.name = "one";
  named.handle = "bytes";
  named.where.group = group.id;
  ASSERT_TRUE(state_.step(GangRequested{named}));
  ready(taken<StartWorkerOn>().at(0));
  ClusterState& head = next_head();
  EXPECT_EQ(head.find({"one", ""})->handle, "bytes");
  EXPECT_EQ(head.find_group({"pair", ""})->id, group.id);
  EXPECT_EQ(head.status().available, of({{"CPU", 1}}));
  auto second = gang(job, 1, {{"CPU", 2}}), third = gang(job, 1, {{"CPU", 1}});
  second.where.group = third.where.group = group.id;
  ASSERT_TRUE(head.step(GangRequested{second}));
  ASSERT_TRUE(head.step(GangRequested{third}));
  join_again(1, {{"CPU", 3}});
  EXPECT_EQ(head.actor(second.actors[0].id)->state, ActorState::kPending);  // one CPU of the bundle is taken
  EXPECT_EQ(head.actor(third.actors[0].id)->state, ActorState::kStarting);
}

TEST_F(RestoreTest, ASubmittedJobEndsWithItsProcessesAndStartsWhereItsPortWasStillSought) {
  join(1, {{"CPU", 4}});
  actors::JobSpec spec;
  spec.num_workers = 2;
  spec.resources = of({{"CPU", 1}});
  const JobId runs = state_.step(JobSubmitted{spec}).value();
  state_.step(PortFound{runs, 5});
  const auto ranks = taken<StartWorkerOn>();
  for (const auto& r : ranks) ready(r);
  const JobId waits = state_.step(JobSubmitted{spec}).value();
  ClusterState& head = next_head();
  join_again(1, {{"CPU", 4}});
  const auto sought = taken_again<FindPortOn>();
  ASSERT_EQ(sought.size(), 1u);
  EXPECT_EQ(sought[0].job, waits);
  for (const auto& r : ranks) tells(r, WorkerState::kExited, 1000, "", 0);
  EXPECT_EQ(head.job(runs)->state, JobState::kSucceeded);
  head.step(PortFound{waits, 6});
  EXPECT_EQ(taken_again<StartWorkerOn>().size(), 2u);
  EXPECT_EQ(head.job(waits)->state, JobState::kRunning);
}

TEST_F(RestoreTest, ARepeatedRequestCreatesOneActor) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  auto g = gang(job, 1, {{"CPU", 1}});
  g.name = "one";
  ASSERT_TRUE(state_.step(GangRequested{g}));
  ClusterState& head = next_head();
  ASSERT_TRUE(head.step(GangRequested{g}));
  EXPECT_EQ(head.list({actors::ListRequest::What::kActors, {}}).actors.size(), 1u);
}

TEST_F(RestoreTest, ADriverThatDoesNotComeBackToJoinANodeFailsItsJob) {
  const JobId job = driver();
  ClusterState& head = next_head();
  for (int s = 1; s <= 5; ++s) {
    EXPECT_EQ(head.job(job)->state, JobState::kRunning);
    head.advance(now_ + std::chrono::seconds(s), unix_ms_);
    head.step(Tick{});
  }
  EXPECT_EQ(head.job(job)->state, JobState::kFailed);
}

TEST_F(RestoreTest, NodesAndDriversHaveTheirTimeAfterARestoreThatTookLong) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  ClusterState& head = next_head();
  head.advance(now_ + 20s, unix_ms_);
  head.step(Tick{});  // the first one: the head listens from now on
  for (int s = 20; s <= 23; ++s) {
    EXPECT_EQ(head.node(NodeId{1})->state, actors::NodeState::kAlive) << s;
    EXPECT_EQ(head.job(job)->state, JobState::kRunning) << s;
    head.advance(now_ + std::chrono::seconds(s), unix_ms_);
    head.step(Tick{});
  }
  for (int s = 24; s <= 26; ++s) {
    head.advance(now_ + std::chrono::seconds(s), unix_ms_);
    head.step(Tick{});
  }
  EXPECT_EQ(head.node(NodeId{1})->state, actors::NodeState::kDead);
  EXPECT_EQ(head.job(job)->state, JobState::kFailed);
}

TEST_F(RestoreTest, AJobOfManyRanksComesBackWithTheirVariables) {
  constexpr std::uint32_t kRanks = 600;
  join(1, {{"CPU", 1000}});
  actors::JobSpec spec;
  spec.num_workers = kRanks;
  spec.resources = of({{"CPU", 1}});
  spec.launch.env = {{"LONG", std::string(30'000, 'v')}};  // all ranks together exceed what a message can have
  const JobId job = state_.step(JobSubmitted{spec}).value();
  state_.step(PortFound{job, 5});
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), kRanks);
  ClusterState& head = next_head();  // before any start reached the node
  join_again(1, {{"CPU", 1000}});
  head.step(NodeBeat{NodeId{1}});
  auto again = taken_again<StartWorkerOn>();
  ASSERT_EQ(again.size(), started.size());
  std::map<WorkerId, Launch> launches;
  for (const auto& s : started) launches[s.message.worker] = s.message.launch;
  for (const auto& s : again) EXPECT_EQ(s.message.launch, launches.at(s.message.worker));
}

TEST(RankPlaces, NodesAreNumberedInTheOrderOfTheirFirstRanks) {
  rows::Job job;
  job.placed = {NodeId{7}, NodeId{3}, NodeId{7}, NodeId{5}};
  std::vector<std::array<std::int32_t, 3>> seen;
  for (const RankPlace& p : rank_places(job)) {
    EXPECT_EQ(p.rank, static_cast<std::int32_t>(seen.size()));
    EXPECT_EQ(p.world_size, 4);
    EXPECT_EQ(p.num_nodes, 3);
    seen.push_back({p.local_rank, p.local_world_size, p.node_rank});
  }
  EXPECT_EQ(seen, (std::vector<std::array<std::int32_t, 3>>{{0, 2, 0}, {0, 1, 1}, {1, 2, 0}, {0, 1, 2}}));
}

// An earlier version stored a launch for each rank, with the rank's variables in it.
TEST(RankPlaces, AJobThatAnEarlierVersionStoredKeepsTheVariablesOfEachRank) {
  rows::Job job;
  job.row.id = JobId{9};
  job.row.num_workers = 2;
  job.launch.env = {{"RANK", "of the submitter"}, {"MODE", "fast"}};
  job.wants.resize(2);
  job.placed = {NodeId{7}, NodeId{3}};
  job.processes = {WorkerId{1}, WorkerId{2}};
  job.address = "10.0.0.7";
  job.port = 29'500;
  rows::Job earlier = job;
  earlier.launch = rank_launch(job, rank_places(job)[0]);
  earlier.address.clear();
  earlier.port = 0;
  for (const rows::Job& stored : {earlier, job}) {
    const auto read = rows::from_record<rows::Job>(rows::to_record(stored));
    ASSERT_TRUE(read) << read.error().message();
    for (const RankPlace& place : rank_places(job)) EXPECT_EQ(rank_launch(*read, place), rank_launch(job, place));
  }
}

}  // namespace
}  // namespace shoal::scheduler
