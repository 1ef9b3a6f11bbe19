// Scenarios of a whole cluster: the guarantees that hold for a user when something breaks.
#include "tests/simulation/sim_cluster.h"

#include <set>

#include <gtest/gtest.h>

namespace shoal::simulation {
namespace {

using namespace std::chrono_literals;
using actors::ActorState;

class ClusterTest : public testing::Test {
 protected:
  ~ClusterTest() override {
    cluster_.state().check_invariants();
    EXPECT_EQ(cluster_.log().num_errors(), 0u);
    if (HasFailure()) std::fprintf(stderr, "the last lines of the log:\n%s", cluster_.log().text().c_str());
  }

  void join() {
    if (!cluster_.has_driver()) cluster_.new_driver();
    ASSERT_TRUE(cluster_.run_until([&] { return driver().joined(); }));
  }
  SimDriver& driver() { return cluster_.driver(); }
  // Creates a gang of `count` actors and waits until each of them has answered a call.
  std::vector<ActorId> gang(std::size_t count, double cpus = 1) {
    auto out = driver().create_gang(count, cpus);
    EXPECT_TRUE(cluster_.all_answer(out));
    return out;
  }
  std::set<std::string> hosts_of(const std::vector<ActorId>& actors) {
    std::set<std::string> out;
    for (const ActorId a : actors) out.insert(cluster_.host_of(a));
    return out;
  }
  std::vector<ActorId> on(const std::string& host, const std::vector<ActorId>& actors, bool there = true) {
    std::vector<ActorId> out;
    for (const ActorId a : actors) {
      if ((cluster_.host_of(a) == host) == there) out.push_back(a);
    }
    return out;
  }
  bool heard_dead(const std::vector<ActorId>& actors) {
    for (const ActorId a : actors) {
      if (driver().cause(a) == nullptr) return false;
    }
    return true;
  }
  void expect_at_rest() {
    EXPECT_TRUE(cluster_.run_until([&] { return cluster_.disagreement().empty(); }, 60s)) << cluster_.disagreement();
    cluster_.state().check_invariants();
  }
  void expect_all_free() {
    const auto free = [&] { return cluster_.state().status().available == cluster_.state().status().total; };
    EXPECT_TRUE(cluster_.run_until(free)) << cluster_.state().status().available.to_string();
    EXPECT_EQ(cluster_.state().status().total.units("CPU"), 12 * actors::Resources::kUnit);
  }

  SimCluster cluster_{SimCluster::Options{}};
};

TEST_F(ClusterTest, AGangIsPlacedOverThreeNodesAndAnswers) {
  join();
  const auto actors = gang(12);
  EXPECT_EQ(hosts_of(actors), (std::set<std::string>{"n0", "n1", "n2"}));
  EXPECT_EQ(cluster_.nodes().workers().size(), 12u);
  expect_at_rest();
  cluster_.driver_leaves();
  expect_all_free();
  EXPECT_TRUE(cluster_.run_until([&] { return cluster_.nodes().workers().empty(); }));
}

TEST_F(ClusterTest, AWorkerCrashFailsItsCallsWithTheCauseAndNoOthers) {
  join();
  auto actors = gang(6);
  const ActorId victim = actors.back();
  actors.pop_back();
  const auto under_way = driver().call(victim, "slow");
  cluster_.run_for(20ms);
  ASSERT_TRUE(cluster_.crash_worker_of(victim));
  const auto late = driver().call(victim, "echo");
  ASSERT_TRUE(cluster_.run_until([&] { return under_way.ready() && late.ready(); }));
  for (const auto& f : {under_way, late}) {
    ASSERT_FALSE(f.peek());
    EXPECT_EQ(f.peek().error().reason(), "ActorDied");
    EXPECT_NE(f.peek().error().message().find("was killed by SIGKILL"), std::string::npos) << f.peek().error().to_string();
    EXPECT_NE(f.peek().error().message().find("the end is near"), std::string::npos);
  }
  EXPECT_TRUE(cluster_.all_answer(actors));
  expect_at_rest();
}

TEST_F(ClusterTest, AnActorThatEndsItsProcessIsDeadWithItsExitCode) {
  join();
  const auto actors = gang(1);
  const auto answer = driver().call(actors[0], "exit");
  ASSERT_TRUE(cluster_.run_until([&] { return answer.ready(); }));
  EXPECT_NE(answer.peek().error().message().find("exited with code 3"), std::string::npos) << answer.peek().error().to_string();
}

// Each actor of the chain is made by the one before, and each lives on another node. The head crashes once the first one's death is known;
// the next head reports the deaths of the others.
TEST_F(ClusterTest, ActorsOnAnyNodeEndWithTheirCreator) {
  join();
  std::vector<ActorId> others, chain;
  for (int i = 0; i < 3; ++i) {
    for (const ActorId a : gang(3)) others.push_back(a);
    const WorkerId creator = chain.empty() ? WorkerId() : cluster_.state().actor(chain.back())->worker;
    chain.push_back(driver().create_actor(-1, {}, creator));
    ASSERT_TRUE(cluster_.all_answer({chain.back()}));
  }
  ASSERT_EQ(hosts_of(chain).size(), 3u);
  driver().kill(chain[0]);
  ASSERT_TRUE(cluster_.run_until([&] { return heard_dead({chain[0]}); }));
  cluster_.heads().crash();
  cluster_.run_for(1s);
  cluster_.heads().boot();
  ASSERT_TRUE(cluster_.run_until([&] { return heard_dead(chain); }, 60s));
  EXPECT_NE(driver().cause(chain[2])->message().find("its creator, actor Echo(" + to_string(chain[1]) + "), ended: its creator"),
            std::string::npos)
      << driver().cause(chain[2])->message();
  EXPECT_TRUE(cluster_.all_answer(others));
  EXPECT_TRUE(cluster_.run_until([&] { return cluster_.nodes().workers().size() == others.size(); }, 60s));
  expect_at_rest();
}

TEST_F(ClusterTest, ANodeCrashEndsOnlyItsActors) {
  join();
  const auto actors = gang(12);
  const auto gone = on("n1", actors), rest = on("n1", actors, false);
  ASSERT_EQ(gone.size(), 4u);
  cluster_.nodes().crash(1);
  EXPECT_TRUE(cluster_.all_answer(rest));
  EXPECT_TRUE(cluster_.run_until([&] { return heard_dead(gone); }));
  ASSERT_TRUE(cluster_.run_until([&] { return cluster_.state().alive_nodes().size() == 2; }));
  for (const ActorId a : gone) EXPECT_EQ(cluster_.state().actor(a)->state, ActorState::kDead);
  EXPECT_TRUE(cluster_.all_answer(rest));
  const auto waiting = driver().create_gang(2, 2);  // waits for CPUs: the actors that are left occupy all CPUs of the other two nodes
  cluster_.run_for(5s);
  EXPECT_EQ(cluster_.state().actor(waiting[0])->state, ActorState::kPending);
  cluster_.nodes().boot(1);
  EXPECT_TRUE(cluster_.all_answer(waiting));
  expect_at_rest();
}

TEST_F(ClusterTest, AKilledActorLeavesNothingBehind) {
  join();
  const auto actors = gang(3);
  driver().kill(actors[1]);
  ASSERT_TRUE(cluster_.run_until([&] { return driver().cause(actors[1]) != nullptr; }));
  EXPECT_NE(driver().cause(actors[1])->message().find("killed by shoal.kill"), std::string::npos);
  EXPECT_TRUE(cluster_.run_until([&] { return cluster_.nodes().workers().size() == 2; }));
  expect_at_rest();
}

TEST_F(ClusterTest, ADriversCrashEndsItsActors) {
  cluster_.new_driver_on_node(2);
  join();
  gang(12);
  driver().crash();
  expect_all_free();
  EXPECT_TRUE(cluster_.run_until([&] { return cluster_.nodes().workers().empty(); }));
  cluster_.new_driver();
  join();
  gang(12);
  expect_at_rest();
}

TEST_F(ClusterTest, ANodeIsLostOnceItsHostRefusesConnections) {
  join();
  const auto actors = gang(12);
  const auto gone = on("n1", actors), rest = on("n1", actors, false);
  cluster_.nodes().kill(1);
  ASSERT_TRUE(cluster_.run_until([&] { return cluster_.state().alive_nodes().size() == 2; }, 500ms));
  ASSERT_TRUE(cluster_.run_until([&] { return heard_dead(gone); }, 500ms));
  EXPECT_NE(driver().cause(gone[0])->message().find("its node's process ended"), std::string::npos);
  EXPECT_TRUE(cluster_.all_answer(rest));
  cluster_.nodes().boot(1);
  gang(4);
  expect_at_rest();
}

// ---- a node that is away for a short time ----

// The node loses its connection to the head, and its process gets no CPU time in which to reconnect. The node's host still accepts the
// head's probes, or is cut off from the head.
TEST_F(ClusterTest, ANodeThatIsSlowToComeBackIsNotLost) {
  join();
  const auto actors = gang(12);
  const NodeId before = cluster_.nodes().id(1);
  for (const bool answers : {true, false}) {
    cluster_.clock_of("n1").stand_still();
    cluster_.world().fabric().disconnect("head", "n1");
    cluster_.run_for(100ms);
    if (!answers) cluster_.partition("head", "n1");
    cluster_.run_for(4s);
    EXPECT_EQ(cluster_.state().alive_nodes().size(), 3u);
    cluster_.heal();
    cluster_.clock_of("n1").go_on();
    cluster_.run_for(2s);
  }
  EXPECT_EQ(cluster_.nodes().id(1), before);
  EXPECT_TRUE(cluster_.all_answer(actors));
  expect_at_rest();
}

TEST_F(ClusterTest, ADeathOnADisconnectedNodeIsReportedWithItsCause) {
  join();
  const auto actors = gang(12);
  const auto there = on("n1", actors);
  cluster_.world().fabric().disconnect("head", "n1");
  cluster_.run_for(100ms);  // the node reconnects only after 500 ms
  ASSERT_TRUE(cluster_.crash_worker_of(there[0]));
  ASSERT_TRUE(cluster_.run_until([&] { return driver().cause(there[0]) != nullptr; }));
  EXPECT_NE(cluster_.state().actor(there[0])->cause->message().find("was killed by SIGKILL"), std::string::npos);
  expect_at_rest();
  EXPECT_TRUE(cluster_.all_answer(on("n1", {there.begin() + 1, there.end()})));
}

TEST_F(ClusterTest, NewsInFlightAtADisconnectAreDelivered) {
  for (int i = 0; i < 30; ++i) {
    cluster_.new_driver();
    join();
    const auto actors = gang(3);
    ASSERT_TRUE(cluster_.crash_worker_of(actors[1]));
    cluster_.run_for(runtime::between(cluster_.world().random(), 0s, 6ms));
    for (const auto* host : {"n0", "n1", "n2"}) cluster_.world().fabric().disconnect("head", host);
    expect_at_rest();
    driver().leave();
    expect_all_free();
  }
}

TEST_F(ClusterTest, AWorkerWhoseStartWasCutOffIsEnded) {
  for (int i = 0; i < 60; ++i) {
    cluster_.new_driver();
    join();
    driver().create_gang(3, 1);
    cluster_.run_for(runtime::between(cluster_.world().random(), 0s, 500ms));
    for (const auto* host : {"n0", "n1", "n2"}) cluster_.world().fabric().disconnect("head", host);
    expect_at_rest();
    driver().leave();
    expect_all_free();
  }
}

TEST_F(ClusterTest, AGangWaitsForADisconnectedNode) {
  join();
  cluster_.world().fabric().disconnect("head", "n1");
  cluster_.run_for(50ms);
  EXPECT_TRUE(cluster_.all_answer(driver().create_gang(12, 1)));
  expect_at_rest();
}

TEST_F(ClusterTest, AnActorKilledOnADisconnectedNodeEndsAfterItsReturn) {
  join();
  const auto actors = gang(3);
  cluster_.world().fabric().disconnect("head", cluster_.host_of(actors[0]));
  cluster_.run_for(50ms);
  driver().kill(actors[0]);
  expect_at_rest();
  EXPECT_TRUE(cluster_.run_until([&] { return cluster_.nodes().workers().size() == 2; }));
}

TEST_F(ClusterTest, AJobsEndReachesADisconnectedNodeAfterItsReturn) {
  join();
  gang(12);
  cluster_.world().fabric().disconnect("head", "n1");
  cluster_.run_for(50ms);
  cluster_.driver_leaves();
  expect_all_free();
  expect_at_rest();
}

TEST_F(ClusterTest, AJobStartsCompletelyDespiteADisconnect) {
  join();
  for (std::size_t i = 0; i < 60; ++i) {
    driver().submit(12, 1, 0, 0);
    // The job's ranks are placed, and the head asks the first node for a free port. Meanwhile the second node loses its connection, so that
    // its ranks start later.
    ASSERT_TRUE(cluster_.run_until([&] { return cluster_.state().status().available.empty(); }));
    cluster_.world().fabric().disconnect("head", cluster_.state().list({actors::ListRequest::What::kNodes, {}}).nodes[1].host);
    cluster_.run_for(40s);
    ASSERT_EQ(driver().submitted().size(), i + 1);
    const auto* job = cluster_.state().job(driver().submitted().back());
    EXPECT_EQ(job->state, actors::JobState::kRunning) << i;
    EXPECT_EQ(cluster_.nodes().workers().size(), 12u) << i;
    driver().stop(job->id, true);
    expect_all_free();
  }
  expect_at_rest();
}

// ---- a node that is away for too long ----

class PartitionTest : public ClusterTest, public testing::WithParamInterface<int> {
 protected:
  // The test's parameter decides what happens when a partition heals. Either all connections across it break, or they deliver the frames
  // that were held back.
  PartitionTest() { cluster_.world().fabric().set_partitions(static_cast<std::uint32_t>(GetParam()), 15min); }
};

TEST_P(PartitionTest, ALostNodeReturnsAsANewNodeWithoutWorkers) {
  join();
  const auto actors = gang(12);
  const auto there = on("n1", actors), rest = on("n1", actors, false);
  const NodeId before = cluster_.nodes().id(1);
  cluster_.partition("head", "n1");
  ASSERT_TRUE(cluster_.run_until([&] { return heard_dead(there); }, 10s));
  EXPECT_NE(driver().cause(there[0])->message().find("stopped answering"), std::string::npos);
  EXPECT_EQ(cluster_.nodes().launcher(1).running().size(), 4u);  // the head's order to end these workers did not pass the partition
  EXPECT_TRUE(cluster_.all_answer(rest));
  cluster_.run_for(1min);
  cluster_.heal();
  ASSERT_TRUE(cluster_.run_until([&] { return cluster_.state().alive_nodes().size() == 3; }, 10s));
  EXPECT_NE(cluster_.nodes().id(1), before);
  EXPECT_TRUE(cluster_.nodes().launcher(1).running().empty());
  EXPECT_TRUE(cluster_.all_answer(rest));
  gang(4);
  expect_at_rest();
  cluster_.driver_leaves();
  expect_all_free();
}

TEST_P(PartitionTest, AShortPartitionChangesNothing) {
  join();
  const auto actors = gang(12);
  for (const std::string host : {"n0", "n1", "n2"}) {
    const NodeId before = cluster_.nodes().id(1);
    cluster_.partition("head", host);
    cluster_.run_for(3s);
    cluster_.heal();
    cluster_.run_for(3s);
    EXPECT_EQ(cluster_.nodes().id(1), before);
  }
  EXPECT_TRUE(cluster_.all_answer(actors));
  expect_at_rest();
}

TEST_P(PartitionTest, WorkersStartingOnALostNodeAreEnded) {
  join();
  for (int i = 0; i < 10; ++i) {
    cluster_.nodes().set_launch_faults({.most_start = 20s});
    const auto actors = driver().create_gang(12, 1);
    cluster_.run_for(1s);
    cluster_.partition("head", "n1");
    cluster_.run_for(8s);
    cluster_.heal();
    cluster_.run_for(1min);
    expect_at_rest();
    for (const ActorId a : actors) driver().kill(a);
    expect_all_free();
  }
}

INSTANTIATE_TEST_SUITE_P(HealBreaks, PartitionTest, testing::Values(0, 1000),
                         [](const auto& info) { return info.param == 0 ? "Nothing" : "Connections"; });

// ---- clocks, where several heads share a store and a lease elects the leader ----

class HeadsTest : public testing::Test {
 protected:
  SimCluster cluster_{SimCluster::Options{.num_heads = 2}};
};

TEST_F(HeadsTest, WallClockJumpsExpireNoLease) {
  const auto term = cluster_.heads().etcd().term();
  const auto nodes = cluster_.state().alive_nodes();
  for (int i = 0; i < 100; ++i) {
    for (const auto& host : cluster_.hosts()) cluster_.clock_of(host).set_wall_ahead(i % 2 == 0 ? 24h * i : -24h * i);
    cluster_.run_for(200ms);
    ASSERT_TRUE(cluster_.head_runs());
  }
  EXPECT_EQ(cluster_.heads().etcd().term(), term);
  EXPECT_EQ(cluster_.state().alive_nodes(), nodes);
}

// By its own clock, which stood still, the old head still leads. Its decisions are not committed, so they reach no node.
TEST_F(HeadsTest, ALeaderSuspendedBeyondItsLeaseStopsLeading) {
  auto& driver = cluster_.new_driver_on_node(0);
  ASSERT_TRUE(cluster_.run_until([&] { return driver.joined(); }));
  for (int i = 0; i < 5; ++i) {
    const auto term = cluster_.heads().etcd().term();
    for (const auto& host : {"head", "head1"}) {
      if (!cluster_.heads().leads(host)) continue;
      cluster_.clock_of(host).stand_still();
      for (const auto& other : cluster_.hosts()) {
        if (other != host) cluster_.partition(host, other);
      }
      break;
    }
    ASSERT_TRUE(cluster_.run_until([&] { return cluster_.heads().etcd().term() > term && cluster_.head_runs(); }));
    ASSERT_TRUE(cluster_.run_until([&] { return cluster_.state().alive_nodes().size() == 3; }));
    cluster_.heal();
    for (const auto& host : cluster_.hosts()) cluster_.clock_of(host).go_on();
    cluster_.run_for(10s);
    EXPECT_EQ(cluster_.heads().etcd().term(), term + 1);
    EXPECT_EQ(cluster_.not_kept(), "");
    EXPECT_TRUE(cluster_.run_until([&] { return cluster_.disagreement().empty(); }, 60s)) << cluster_.disagreement();
    EXPECT_TRUE(cluster_.run_until([&] { return cluster_.store_agrees(); }));
    EXPECT_TRUE(cluster_.all_answer(driver.create_gang(2, 1)));
  }
}

// Runs a cluster with this seed. Returns a hash of all events and the last random number, which are the same if two runs are.
std::pair<std::uint64_t, std::uint64_t> run_of(std::uint64_t seed) {
  SimCluster cluster({.seed = seed});
  for (int i = 0; i < 3; ++i) {
    auto& driver = cluster.new_driver_on_node(0);
    cluster.run_until([&] { return driver.joined(); });
    const auto actors = driver.create_gang(12, 1);
    cluster.all_answer(actors);
    for (const ActorId a : actors) driver.call(a, "slow");
    cluster.nodes().crash(1);
    cluster.run_for(20s);
    cluster.nodes().boot(1);
    cluster.run_for(1s);
  }
  return {cluster.world().trace_hash(), cluster.world().last_draw()};
}

TEST(Cluster, ASeedReplaysTheSameRun) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) EXPECT_EQ(run_of(seed), run_of(seed)) << seed;
  EXPECT_NE(run_of(1).first, run_of(2).first);
}

}  // namespace
}  // namespace shoal::simulation
