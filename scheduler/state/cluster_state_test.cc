#include <csignal>
#include <set>

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

TEST_F(ClusterStateTest, AGangIsPlacedAllOrNothing) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  join(2, {{"CPU", 1}});
  const auto small = gang(job, 2, {{"CPU", 1}}), large = gang(job, 4, {{"CPU", 1}}), third = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{small}));
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 2u);
  EXPECT_EQ(started[0].node, started[1].node);  // packed
  ASSERT_TRUE(state_.step(GangRequested{large}));
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
  ASSERT_TRUE(state_.step(GangRequested{third}));  // not held up by the one that does not fit
  EXPECT_EQ(taken<StartWorkerOn>().size(), 1u);
  join(3, {{"CPU", 4}});
  EXPECT_EQ(taken<StartWorkerOn>().size(), 4u);
}

TEST_F(ClusterStateTest, AnActorWithoutResourcesGoesToTheLeastUsedNodeWithCpus) {
  const JobId job = driver();
  join(1, {{"GPU", 1}});
  const auto place = [&] {
    EXPECT_TRUE(state_.step(GangRequested{gang(job, 1, {})}));
    return taken<StartWorkerOn>().at(0);
  };
  EXPECT_EQ(place().node, NodeId{1});  // the only node
  join(2, {{"CPU", 1}});
  join(3, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{gang(job, 1, {{"CPU", 1}})}));
  EXPECT_EQ(taken<StartWorkerOn>().at(0).node, NodeId{2});
  const auto third = place();
  EXPECT_EQ(third.node, NodeId{3});
  EXPECT_EQ(place().node, NodeId{2});  // although its CPU is taken
  EXPECT_EQ(place().node, NodeId{3});
  EXPECT_EQ(place().node, NodeId{2});
  ready(third);
  dies(third, 0, "ended");
  EXPECT_EQ(place().node, NodeId{3});
}

TEST_F(ClusterStateTest, AnActorWithoutResourcesIsNearItsCreatorWhileCpusAreFree) {
  const JobId job = driver();
  join(1, {{"CPU", 4}});
  join(2, {{"CPU", 2}});
  const auto place = [&] {
    EXPECT_TRUE(state_.step(GangRequested{gang(job, 1, {})}));
    return taken<StartWorkerOn>().at(0).node;
  };
  state_.step(WorkerUpdated{NodeId{2}, {WorkerId{77}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
  EXPECT_EQ(place(), NodeId{2});
  EXPECT_EQ(place(), NodeId{2});
  EXPECT_EQ(place(), NodeId{1});  // as many processes as CPUs on node 2
  EXPECT_EQ(place(), NodeId{1});
}

TEST_F(ClusterStateTest, AnActorWithLabelsOnlyGoesToANodeWithCpus) {
  const JobId job = driver();
  join(1, {});
  join(2, {{"CPU", 1}});
  auto g = gang(job, 1, {});
  g.where.labels = {{"zone", {"a"}, true}};
  ASSERT_TRUE(state_.step(GangRequested{g}));
  EXPECT_EQ(taken<StartWorkerOn>().at(0).node, NodeId{2});
}

TEST_F(ClusterStateTest, AnActorLivesWhenItsWorkerTakesCallsAndDiesWithIt) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kStarting);
  ready(s);
  EXPECT_EQ(taken<NotifyActor>().at(0).row.endpoint, "unix:@w");
  dies(s, 137, "was killed by SIGKILL");
  const auto reported = taken<NotifyActor>();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].row.cause->reason(), "ActorDied");
  EXPECT_NE(reported[0].row.cause->message().find("was killed by SIGKILL"), std::string::npos);
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
}

TEST_F(ClusterStateTest, AnInfeasibleRequestIsRefusedOrPendsWithTheNearestFit) {
  const JobId job = driver();
  join(1, {{"CPU", 2}});
  const auto refused = state_.step(GangRequested{gang(job, 1, {{"GPU", 4}}, true)});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "Infeasible");
  EXPECT_NE(refused.error().message().find("lacks GPU 4 (has 0)"), std::string::npos) << refused.error().message();
  const GangSpec waits = gang(job, 1, {{"GPU", 4}});
  ASSERT_TRUE(state_.step(GangRequested{waits}));
  // The row shows the reason at once; the warning comes after a moment.
  const std::string why =
      "can never start on the nodes that there are: needs GPU 4; nearest fit: node 0000000000000001 lacks GPU 4 (has 0). Add a node that "
      "can "
      "hold it (shoal start --address ..), or ask for less";
  EXPECT_EQ(state_.actor(waits.actors[0].id)->pending_reason, why);
  pass(500ms);
  state_.step(NodeBeat{NodeId{1}});
  state_.step(Tick{});
  EXPECT_TRUE(taken<Warn>().empty());
  pass(600ms);
  state_.step(Tick{});
  const auto warned = taken<Warn>();
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].text, "actor A is pending: " + why);
  pass(1s);
  state_.step(Tick{});
  EXPECT_TRUE(taken<Warn>().empty());  // a single warning
}

TEST_F(ClusterStateTest, TheJobOfAStoppedWorkerIsWarnedOnce) {
  const NodeId node = join(1, {{"CPU", 1}});
  const JobId job = driver();
  const GangSpec one = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{one}));
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 1u);
  ready(started[0]);
  const WorkerId worker = started[0].message.worker;
  const auto reported = [&](WorkerState state) {
    state_.step(WorkerUpdated{node, {worker, state, 1000, "unix:@w", 0, {}, {}, {}}});
    return taken<Warn>();
  };
  const auto warned = reported(WorkerState::kStopped);
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].job, job);
  EXPECT_NE(warned[0].text.find("actor A(" + to_string(one.actors[0].id) + ") (pid 1000 on 127.0.0.1) does not run"), std::string::npos);
  EXPECT_NE(warned[0].text.find("kill -CONT 1000"), std::string::npos);
  EXPECT_TRUE(reported(WorkerState::kStopped).empty());  // a node repeats its reports to each new head
  EXPECT_EQ(state_of(one.actors[0].id), ActorState::kAlive);
  EXPECT_TRUE(reported(WorkerState::kRunning).empty());
  EXPECT_EQ(reported(WorkerState::kStopped).size(), 1u);
}

TEST_F(ClusterStateTest, ASilentNodeTakesItsActorsAlongAndTheirPlacesAreGivenAgain) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  join(2, {{"CPU", 1}});
  const auto g = gang(job, 2, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  for (const auto& s : taken<StartWorkerOn>()) ready(s);
  actors();
  pass(4s);
  state_.step(NodeBeat{NodeId{1}});
  pass(2s);
  state_.step(Tick{});
  const auto reported = taken<NotifyActor>();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].row.node, NodeId{2});
  EXPECT_NE(reported[0].row.cause->message().find("stopped answering"), std::string::npos);
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kAlive);
  actors::RegisterNode again;
  again.id = NodeId{2};
  EXPECT_EQ(state_.step(NodeJoined{again}).error().reason(), "Fenced");  // its workers were declared dead
  join(3, {{"CPU", 1}});
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
}

TEST_F(ClusterStateTest, TimeInWhichTheHeadStoodStillMakesNoNodeSilent) {
  join(1, {{"CPU", 1}});
  join(2, {{"CPU", 1}});
  state_.step(Tick{});
  pass(1h);
  state_.step(Tick{});  // their heartbeats are still unread
  EXPECT_EQ(state_.alive_nodes().size(), 2u);
  for (int i = 0; i < 4; ++i) {
    state_.step(NodeBeat{NodeId{2}});
    pass(1s);
    state_.step(Tick{});
  }
  EXPECT_EQ(state_.alive_nodes().size(), 2u);
  for (int i = 0; i < 2; ++i) {  // longer silence of node 1
    state_.step(NodeBeat{NodeId{2}});
    pass(1s);
    state_.step(Tick{});
  }
  EXPECT_EQ(state_.alive_nodes(), std::vector{NodeId{2}});
}

TEST_F(ClusterStateTest, ADriverThatVanishesTakesItsActorsAlong) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  state_.step(WorkerUpdated{NodeId{1}, {WorkerId{55}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  actors();
  state_.step(WorkerUpdated{NodeId{1}, {WorkerId{55}, WorkerState::kExited, 100, "", 137, unavailable("was killed by SIGKILL"), job, {}}});
  EXPECT_EQ(taken<EndJobOn>().size(), 1u);
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kDead);
  EXPECT_EQ(state_.job(job)->state, JobState::kFailed);
  EXPECT_EQ(state_.status().available.units("CPU"), 0);  // until its process has exited
  dies(s, 137, "");
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
}

TEST_F(ClusterStateTest, ASubmittedGangGetsTorchrunsVariablesAndItsFirstFailureIsTheJobs) {
  join(1, {{"CPU", 2}});
  join(2, {{"CPU", 1}});
  actors::JobSpec spec;
  spec.name = "train.py";
  spec.num_workers = 3;
  spec.resources = of({{"CPU", 1}});
  const JobId job = state_.step(JobSubmitted{spec}).value();
  EXPECT_EQ(taken<FindPortOn>().size(), 1u);
  state_.step(PortFound{job, 29500});
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 3u);
  std::map<std::string, std::string> env(started[2].message.launch.env.begin(), started[2].message.launch.env.end());
  EXPECT_EQ(env["RANK"], "2");
  EXPECT_EQ(env["WORLD_SIZE"], "3");
  EXPECT_EQ(env["LOCAL_RANK"], "0");
  EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "1");
  EXPECT_EQ(env["GROUP_RANK"], "1");
  EXPECT_EQ(env["MASTER_ADDR"], "127.0.0.1");
  EXPECT_EQ(env["MASTER_PORT"], "29500");
  dies(started[1], 3, "exited with code 3");
  const auto stopped = taken<StopWorkerOn>();
  ASSERT_EQ(stopped.size(), 2u);
  EXPECT_EQ(stopped[0].message.signal, SIGTERM);
  dies(started[0], 143, "was killed by SIGTERM");
  dies(started[2], 143, "was killed by SIGTERM");
  const auto* row = state_.job(job);
  EXPECT_EQ(row->state, JobState::kFailed);
  EXPECT_EQ(row->exit_code, 3);
  EXPECT_EQ(row->cause->to_string(), "error[Unavailable]: exited with code 3\n  in: rank 1");
}

TEST_F(ClusterStateTest, AJobIsRefusedWhenInfeasibleUnlessItWaits) {
  join(1, {{"CPU", 2}});
  actors::JobSpec spec;
  spec.resources = of({{"GPU", 1}});
  EXPECT_EQ(state_.step(JobSubmitted{spec}).error().reason(), "Infeasible");
  spec.wait = true;
  const JobId job = state_.step(JobSubmitted{spec}).value();
  actors();
  join(2, {{"GPU", 1}});
  EXPECT_EQ(taken<StartWorkerOn>().size(), 1u);
  EXPECT_EQ(state_.job(job)->state, JobState::kRunning);
}

TEST_F(ClusterStateTest, StoppingAJobEndsItsProcessesAndItsPendingRequests) {
  join(1, {{"CPU", 2}});
  actors::JobSpec spec;
  spec.num_workers = 2;
  spec.resources = of({{"CPU", 1}});
  const JobId early = state_.step(JobSubmitted{spec}).value();  // waits for its port
  ASSERT_TRUE(state_.step(JobStopped{early, false}));
  EXPECT_EQ(state_.job(early)->state, JobState::kStopped);
  EXPECT_EQ(state_.status().available, of({{"CPU", 2}}));
  const JobId job = state_.step(JobSubmitted{spec}).value();
  state_.step(PortFound{job, 1});
  state_.step(PortFound{early, 1});  // a late answer without effect
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 2u);
  ASSERT_TRUE(state_.step(JobStopped{job, false}));
  EXPECT_EQ(taken<StopWorkerOn>().at(0).message.signal, SIGTERM);
  ASSERT_TRUE(state_.step(JobStopped{job, true}));
  EXPECT_EQ(taken<StopWorkerOn>().at(0).message.signal, SIGKILL);
  for (const auto& s : started) dies(s, 137, "was killed by SIGKILL");
  EXPECT_EQ(state_.job(job)->state, JobState::kStopped);
}

TEST_F(ClusterStateTest, KillingAnActorEndsItsProcessAndNotifiesAll) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}}), waiting = gang(job, 2, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  ready(taken<StartWorkerOn>().at(0));
  ASSERT_TRUE(state_.step(GangRequested{waiting}));
  actors();
  ASSERT_TRUE(state_.step(ActorKilled{g.actors[0].id}));
  const auto acted = actors();
  ASSERT_EQ(acted.size(), 2u);
  EXPECT_NE(to_string(acted[0]).find("killed by shoal.kill"), std::string::npos);
  EXPECT_NE(to_string(acted[1]).find("StopWorker"), std::string::npos);
  ASSERT_TRUE(state_.step(ActorKilled{waiting.actors[1].id}));  // pending: the whole gang ends
  EXPECT_EQ(state_of(waiting.actors[0].id), ActorState::kDead);
  EXPECT_EQ(state_.step(ActorKilled{ActorId{999999}}).error().code(), Code::kNotFound);
}

TEST_F(ClusterStateTest, OldRowsAreForgottenAtTheirBound) {
  ClusterState state({.max_ended_rows = 3}, random_);
  for (int i = 0; i < 10; ++i) {
    const JobId job = state.step(DriverJoined{{"x", 1, {}}});
    state.step(DriverEnded{job});
  }
  state.step(Tick{});
  EXPECT_EQ(state.list({actors::ListRequest::What::kJobs, {}}).jobs.size(), 3u);
}

TEST_F(ClusterStateTest, ADriverThatEndsBeforeItAttachesFailsItsJob) {
  const NodeId node = join(1, {{"CPU", 1}});
  const JobId job = driver(), known = driver();
  state_.step(WorkerUpdated{node, {WorkerId{55}, WorkerState::kRunning, 100, "", 0, {}, known, "rank 0"}});
  state_.step(DriverGone{job});
  state_.step(DriverGone{known});
  EXPECT_EQ(state_.job(job)->state, JobState::kFailed);
  EXPECT_NE(state_.job(job)->cause->message().find("before it had joined"), std::string::npos);
  EXPECT_EQ(state_.job(known)->state, JobState::kRunning);  // left to its node, which reports its processes
}

TEST_F(ClusterStateTest, ANodeThatReportsADepartedDriverDropsItsJob) {
  const NodeId node = join(1, {{"CPU", 1}});
  const JobId job = driver();
  state_.step(DriverEnded{job});
  EXPECT_TRUE(taken<EndJobOn>().empty());  // its node is still unknown
  state_.step(WorkerUpdated{node, {WorkerId{55}, WorkerState::kRunning, 100, "", 0, {}, job, "driver"}});
  const auto reported = taken<EndJobOn>();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].node, node);
  EXPECT_EQ(reported[0].job, job);
}

TEST_F(ClusterStateTest, AListComesInPagesWithTheFirstLineOfEachCause) {
  ClusterState state({.max_listed_rows = 4, .max_listed_text = 9}, random_);
  actors::RegisterNode node;
  node.id = NodeId{1};
  ASSERT_TRUE(state.step(NodeJoined{node}));
  state.take_actions();
  std::set<JobId> jobs;
  for (int i = 0; i < 10; ++i) {
    const JobId job = state.step(JobSubmitted{{}}).value();
    jobs.insert(job);
    const auto actions = state.take_actions();
    const auto worker = std::get<StartWorkerOn>(actions[0]).message.worker;
    const Error cause = unavailable(i == 0 ? "short\n" + std::string(4000, 'x') : "8 bytes \u00e9 and more").in("a frame");
    state.step(WorkerUpdated{node.id, {worker, WorkerState::kExited, 1, "", 1, cause, job, {}}});
    state.take_actions();
  }
  int num_pages = 0, num_short = 0;
  const auto all = actors::list_all({actors::ListRequest::What::kJobs, {}}, [&](const Bytes& request) -> Result<actors::ListReply> {
    ++num_pages;
    return state.list(actors::from_bytes<actors::ListRequest>(request).value());
  });
  EXPECT_EQ(num_pages, 3);
  std::set<JobId> listed;
  for (const auto& row : all->jobs) {
    listed.insert(row.id);
    num_short += row.cause->message() == "short";
    EXPECT_TRUE(row.cause->message() == "short" || row.cause->message() == "8 bytes ");
    EXPECT_EQ(row.cause->context().size(), 1u);
    EXPECT_GT(state.job(row.id)->cause->message().size(), 9u);
  }
  EXPECT_EQ(listed, jobs);
  EXPECT_EQ(num_short, 1);
  const JobId one = *jobs.begin();
  EXPECT_EQ(state.list({actors::ListRequest::What::kWorkers, one}).workers.size(), 1u);
}

TEST_F(ClusterStateTest, AGangWithoutItsFirstRowsCanFailAndBeStopped) {
  ClusterState state({.max_ended_rows = 1}, random_);
  actors::RegisterNode node;
  node.id = NodeId{1};
  ASSERT_TRUE(state.step(NodeJoined{node}));
  actors::JobSpec spec;
  spec.num_workers = 4;
  const JobId job = state.step(JobSubmitted{spec}).value();
  state.step(PortFound{job, 1});
  std::vector<WorkerId> ranks;
  for (const auto& a : state.take_actions()) {
    if (const auto* s = std::get_if<StartWorkerOn>(&a)) ranks.push_back(s->message.worker);
  }
  ASSERT_EQ(ranks.size(), 4u);
  const auto exits = [&](WorkerId w, int code) {
    state.step(WorkerUpdated{node.id, {w, WorkerState::kExited, 1, "", code, {}, job, {}}});
    state.step(Tick{});
  };
  const auto expect_only_the_last_is_stopped = [&] {
    std::vector<WorkerId> stopped;
    for (const auto& a : state.take_actions()) {
      if (const auto* s = std::get_if<StopWorkerOn>(&a)) stopped.push_back(s->message.worker);
    }
    EXPECT_EQ(stopped, std::vector<WorkerId>{ranks[3]});
  };
  exits(ranks[0], 0);
  exits(ranks[1], 0);
  exits(ranks[2], 1);
  expect_only_the_last_is_stopped();
  ASSERT_TRUE(state.step(JobStopped{job, true}));
  expect_only_the_last_is_stopped();
  exits(ranks[3], 137);
  EXPECT_EQ(state.job(job)->state, JobState::kStopped);
}

// ---- names

GangSpec named(GangSpec g, const std::string& name, bool detached = false) {
  g.name = name;
  g.name_space = "n";
  g.handle = "h:" + name;
  g.detached = detached;
  return g;
}

TEST_F(ClusterStateTest, ANameStandsForOneLivingActorOfItsNamespace) {
  const JobId job = driver();
  join(1, {{"CPU", 4}});
  const auto first = named(gang(job, 1, {{"CPU", 1}}), "a");
  ASSERT_TRUE(state_.step(GangRequested{first}));
  EXPECT_EQ(state_.find({"a", "n"})->row.id, first.actors[0].id);
  EXPECT_EQ(state_.find({"a", "n"})->handle, "h:a");
  EXPECT_EQ(state_.find({"a", "m"}).error().reason(), "NoSuchName");
  const auto second = named(gang(job, 1, {{"CPU", 1}}), "a");
  EXPECT_EQ(state_.step(GangRequested{second}).error().reason(), "NameTaken");
  auto same = second;
  same.get_if_exists = true;
  EXPECT_EQ(state_.step(GangRequested{same}).value()->row.id, first.actors[0].id);
  auto elsewhere = second;
  elsewhere.name_space = "m";
  ASSERT_FALSE(state_.step(GangRequested{elsewhere}).value());
  ASSERT_TRUE(state_.step(ActorKilled{first.actors[0].id}));
  EXPECT_FALSE(state_.find({"a", "n"}));
  EXPECT_FALSE(state_.step(GangRequested{named(gang(job, 1, {{"CPU", 1}}), "a")}).value());  // the name is free again
}

TEST_F(ClusterStateTest, ADetachedActorIsAJobOfItsOwn) {
  const JobId job = driver();
  join(1, {{"CPU", 4}});
  const auto g = named(gang(job, 1, {{"CPU", 1}}), "d", true);
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  EXPECT_NE(s.message.job, job);
  state_.step(DriverEnded{job});
  EXPECT_EQ(state_of(g.actors[0].id), ActorState::kAlive);
  for (const auto& e : taken<EndJobOn>()) EXPECT_EQ(e.job, job);
  // An actor that the detached actor makes ends with it.
  const auto child = gang(s.message.job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{child}));
  ASSERT_TRUE(state_.step(ActorKilled{g.actors[0].id}));
  EXPECT_EQ(state_of(child.actors[0].id), ActorState::kDead);
  EXPECT_EQ(state_.job(s.message.job)->state, JobState::kStopped);
}

TEST_F(ClusterStateTest, ADetachedActorThatEndsItselfEndsItsJobWell) {
  const JobId job = driver();
  join(1, {{"CPU", 4}});
  ASSERT_TRUE(state_.step(GangRequested{named(gang(job, 1, {{"CPU", 1}}), "d", true)}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  dies(s, 0, "");
  EXPECT_EQ(state_.job(s.message.job)->state, JobState::kSucceeded);
  EXPECT_FALSE(state_.find({"d", "n"}));
}

// ---- placement groups

TEST_F(ClusterStateTest, MetricsCountTheState) {
  const auto measured = [this] {
    std::map<std::string, double> out;
    for (const auto& family : state_.metrics()) {
      for (const auto& sample : family.samples) {
        std::string row = family.name;
        for (const auto& [name, value] : sample.labels) row += " " + value;
        out[row] = sample.value;
      }
    }
    return out;
  };
  EXPECT_EQ(measured().at("shoal_nodes ALIVE"), 0);
  const JobId job = driver();
  const NodeId node = join(1, {{"CPU", 3}});
  ASSERT_TRUE(state_.step(GangRequested{gang(job, 2, {{"CPU", 1}})}));
  ASSERT_TRUE(state_.step(GangRequested{gang(job, 1, {{"CPU", 2}})}));
  ready(taken<StartWorkerOn>().at(0));
  auto now = measured();
  EXPECT_EQ(now.at("shoal_nodes ALIVE"), 1);
  EXPECT_EQ(now.at("shoal_actors ALIVE"), 1);
  EXPECT_EQ(now.at("shoal_actors STARTING"), 1);
  EXPECT_EQ(now.at("shoal_actors PENDING"), 1);
  EXPECT_EQ(now.at("shoal_jobs RUNNING"), 1);
  EXPECT_EQ(now.at("shoal_placement_groups REMOVED"), 0);
  EXPECT_EQ(now.at("shoal_pending_demands"), 1);
  EXPECT_EQ(now.at("shoal_resources 127.0.0.1 " + to_string(node) + " CPU"), 3);
  EXPECT_EQ(now.at("shoal_resources_used 127.0.0.1 " + to_string(node) + " CPU"), 2);
  state_.step(NodeLost{node, unavailable("gone")});
  actors();
  now = measured();
  EXPECT_EQ(now.at("shoal_nodes DEAD"), 1);
  EXPECT_FALSE(now.contains("shoal_resources 127.0.0.1 " + to_string(node) + " CPU"));
}

}  // namespace
}  // namespace shoal::scheduler
