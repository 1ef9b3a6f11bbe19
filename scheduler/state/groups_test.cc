// Placement groups.
#include <csignal>
#include <set>

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class GroupTest : public ClusterStateTest {
 protected:
  GroupTest() { job_ = driver(); }

  actors::GroupSpec group(const std::vector<std::map<std::string, double>>& bundles, actors::Strategy strategy) {
    actors::GroupSpec g;
    g.id = GroupId{next_id_++};
    g.job = job_;
    g.strategy = strategy;
    for (const auto& b : bundles) g.bundles.push_back(of(b));
    return g;
  }
  GangSpec in(const actors::GroupSpec& g, const std::map<std::string, double>& each, int bundle = -1) {
    GangSpec out = gang(job_, 1, each);
    out.where.group = g.id;
    out.where.bundle = bundle;
    return out;
  }
  std::set<NodeId> nodes_of(const actors::GroupSpec& g) {
    const auto& nodes = state_.group(g.id)->nodes;
    return {nodes.begin(), nodes.end()};
  }
  std::string state_of_group(const actors::GroupSpec& g) { return actors::to_string(state_.group(g.id)->state); }

  JobId job_;
};

TEST_F(GroupTest, StrategiesChooseNodes) {
  using actors::Strategy;
  join(1, {{"CPU", 2}});
  join(2, {{"CPU", 2}});
  join(3, {{"CPU", 2}});
  const auto pack = group({{{"CPU", 1}}, {{"CPU", 1}}}, Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{pack}));
  EXPECT_EQ(nodes_of(pack).size(), 1u);
  const auto spread = group({{{"CPU", 1}}, {{"CPU", 1}}, {{"CPU", 1}}}, Strategy::kSpread);
  ASSERT_TRUE(state_.step(GroupRequested{spread}));  // best effort: two nodes have room
  EXPECT_EQ(nodes_of(spread).size(), 2u);
  const auto strict = group({{{"CPU", 2}}, {{"CPU", 1}}}, Strategy::kStrictPack);
  ASSERT_TRUE(state_.step(GroupRequested{strict}));
  EXPECT_EQ(state_of_group(strict), "PENDING");
  const auto apart = group({{{"CPU", 1}}, {{"CPU", 1}}}, Strategy::kStrictSpread);
  ASSERT_TRUE(state_.step(GroupRequested{apart}));
  EXPECT_EQ(state_of_group(apart), "PENDING");
  join(4, {{"CPU", 3}});
  EXPECT_EQ(nodes_of(strict), std::set<NodeId>{NodeId{4}});
  state_.step(GroupRemoved{pack.id});
  EXPECT_EQ(nodes_of(apart).size(), 2u);
}

TEST_F(GroupTest, AStrictSpreadFindsAnyMatching) {
  join(1, {{"CPU", 4}, {"GPU", 1}});
  join(2, {{"CPU", 1}});
  // Bundle 0 fits on both nodes, bundle 1 only on the node that first fit would give to bundle 0.
  const auto g = group({{{"CPU", 1}}, {{"GPU", 1}}}, actors::Strategy::kStrictSpread);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  EXPECT_EQ(state_of_group(g), "CREATED");
}

TEST_F(GroupTest, ActorsLiveOffItsBundlesAndDieWithIt) {
  join(1, {{"CPU", 2}});
  const auto g = group({{{"CPU", 1}}, {{"CPU", 1}}}, actors::Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  EXPECT_TRUE(state_.status().available.empty());
  const auto a = in(g, {{"CPU", 1}}, 1), b = in(g, {{"CPU", 1}}, 1), c = in(g, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{a}));
  ASSERT_TRUE(state_.step(GangRequested{b}));
  ASSERT_TRUE(state_.step(GangRequested{c}));
  EXPECT_EQ(state_of(a.actors[0].id), ActorState::kStarting);
  EXPECT_EQ(state_of(b.actors[0].id), ActorState::kPending);  // bundle 1 is taken
  EXPECT_EQ(state_of(c.actors[0].id), ActorState::kStarting);
  const auto started = taken<StartWorkerOn>();
  dies(started.at(0), 0, "");
  EXPECT_EQ(state_of(b.actors[0].id), ActorState::kStarting);  // in the freed place
  EXPECT_TRUE(state_.status().available.empty());
  state_.step(GroupRemoved{g.id});
  EXPECT_EQ(state_of(b.actors[0].id), ActorState::kDead);
  EXPECT_EQ(state_.actor(b.actors[0].id)->cause->message(), "actor A died: its placement group was removed");
  EXPECT_EQ(taken<StopWorkerOn>().size(), 2u);
  dies(started.at(1), 137, "killed");
  EXPECT_EQ(state_.step(GangRequested{in(g, {{"CPU", 1}})}).error().reason(), "GroupRemoved");
}

TEST_F(GroupTest, ARemovedGroupWaitsForNothing) {
  join(1, {{"CPU", 1}});
  const auto g = group({{{"CPU", 2}}}, actors::Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  EXPECT_NE(state_.group(g.id)->pending_reason, "");
  state_.step(GroupRemoved{g.id});
  EXPECT_EQ(state_of_group(g), "REMOVED");
  EXPECT_EQ(state_.group(g.id)->pending_reason, "");
}

TEST_F(GroupTest, ARequestThatFitsNoBundleIsRefused) {
  join(1, {{"CPU", 2}});
  const auto g = group({{{"CPU", 1}}, {{"CPU", 1}}}, actors::Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  EXPECT_EQ(state_.step(GangRequested{in(g, {{"CPU", 2}})}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(state_.step(GangRequested{in(g, {{"CPU", 1}}, 2)}).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(state_.step(GroupRequested{g}));  // a repeated request whose answer was lost
  auto of_another = g;
  of_another.job = driver();
  EXPECT_EQ(state_.step(GroupRequested{of_another}).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(state_.step(GroupRequested{group({{}}, actors::Strategy::kPack)}).error().code(), Code::kInvalidArgument);
}

TEST_F(GroupTest, ABundleThatLosesItsNodeIsPlacedAgain) {
  join(1, {{"CPU", 1}});
  join(2, {{"CPU", 1}});
  const auto g = group({{{"CPU", 1}}, {{"CPU", 1}}}, actors::Strategy::kStrictSpread);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  const auto a = in(g, {{"CPU", 1}}, 1);
  ASSERT_TRUE(state_.step(GangRequested{a}));
  const NodeId lost = state_.group(g.id)->nodes[1];
  state_.step(NodeLost{lost, unavailable("gone")});
  EXPECT_EQ(state_of_group(g), "RESCHEDULING");
  EXPECT_EQ(state_of(a.actors[0].id), ActorState::kDead);
  const auto b = in(g, {{"CPU", 1}}, 1);
  ASSERT_TRUE(state_.step(GangRequested{b}));
  EXPECT_EQ(state_of(b.actors[0].id), ActorState::kPending);
  join(3, {{"CPU", 1}});
  EXPECT_EQ(state_of_group(g), "CREATED");
  EXPECT_EQ(state_.actor(b.actors[0].id)->node, NodeId{3});
}

TEST_F(GroupTest, ARestartedActorStandsBeforeItsGroupAndStillComesAfterIt) {
  join(1, {{"CPU", 1}});
  const auto g = group({{{"CPU", 1}}}, actors::Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  auto a = in(g, {{"CPU", 1}});
  a.max_restarts = 1;
  auto waits = in(g, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{a}));
  ASSERT_TRUE(state_.step(GangRequested{waits}));
  ready(taken<StartWorkerOn>().at(0));
  state_.step(NodeLost{NodeId{1}, unavailable("gone")});  // by silence, without node_away()
  EXPECT_EQ(state_of(a.actors[0].id), ActorState::kRestarting);
  EXPECT_EQ(state_of(waits.actors[0].id), ActorState::kPending);  // not on the lost node
  EXPECT_TRUE(taken<StartWorkerOn>().empty());
  join(2, {{"CPU", 2}});
  EXPECT_EQ(state_of_group(g), "CREATED");
  EXPECT_EQ(taken<StartWorkerOn>().size(), 1u);  // room for one of the two
}

TEST_F(GroupTest, ItEndsWithItsJobUnlessItIsDetached) {
  join(1, {{"CPU", 2}});
  auto mine = group({{{"CPU", 1}}}, actors::Strategy::kPack), detached = group({{{"CPU", 1}}}, actors::Strategy::kPack);
  auto waiting = group({{{"CPU", 9}}}, actors::Strategy::kPack);
  detached.detached = true;
  detached.name = "kept";
  for (const auto& g : {mine, detached, waiting}) ASSERT_TRUE(state_.step(GroupRequested{g}));
  state_.step(DriverEnded{job_});
  EXPECT_EQ(state_of_group(mine), "REMOVED");
  EXPECT_EQ(state_of_group(waiting), "REMOVED");
  EXPECT_EQ(state_of_group(detached), "CREATED");
  EXPECT_EQ(state_.find_group({"kept", ""})->id, detached.id);
  EXPECT_EQ(state_.status().available, of({{"CPU", 1}}));
  EXPECT_TRUE(state_.status().pending.empty());
}

TEST_F(GroupTest, AWorkerThatWaitsLendsItsCpus) {
  join(1, {{"CPU", 1}, {"GPU", 1}});
  const auto first = gang(job_, 1, {{"CPU", 1}, {"GPU", 1}}), second = gang(job_, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{first}));
  ASSERT_TRUE(state_.step(GangRequested{second}));
  const auto started = taken<StartWorkerOn>();
  ASSERT_EQ(started.size(), 1u);
  state_.step(WorkerBlocked{started[0].message.worker, true});
  state_.step(WorkerBlocked{started[0].message.worker, true});  // a repeated notice
  EXPECT_EQ(state_of(second.actors[0].id), ActorState::kStarting);
  EXPECT_EQ(state_.status().available.units("GPU"), 0);
  state_.step(WorkerBlocked{started[0].message.worker, false});  // both running now
  const auto third = gang(job_, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{third}));
  dies(started[0], 0, "");
  EXPECT_EQ(state_of(third.actors[0].id), ActorState::kPending);
  dies(taken<StartWorkerOn>().at(0), 0, "");
  EXPECT_EQ(state_of(third.actors[0].id), ActorState::kStarting);
}

TEST_F(GroupTest, AWorkerThatDiesWhileItLendsFreesItsCpusOnce) {
  join(1, {{"CPU", 2}});
  const auto g = group({{{"CPU", 1}}}, actors::Strategy::kPack);
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  const auto a = in(g, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{a}));
  const auto started = taken<StartWorkerOn>();
  state_.step(WorkerBlocked{started.at(0).message.worker, true});
  dies(started[0], 137, "killed");
  state_.step(WorkerBlocked{started[0].message.worker, false});  // a late notice
  state_.step(GroupRemoved{g.id});
  EXPECT_EQ(state_.status().available, of({{"CPU", 2}}));
}

TEST_F(GroupTest, AListOfLargeGroupsComesInPagesThatFitAMessage) {
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(
        state_.step(GroupRequested{group(std::vector<std::map<std::string, double>>(2000, {{"CPU", 1}}), actors::Strategy::kPack)}));
  }
  std::size_t rows = 0;
  actors::ListRequest request;
  request.what = actors::ListRequest::What::kGroups;
  do {
    const auto page = state_.list(request);
    EXPECT_LT(actors::to_bytes(page).size(), std::size_t{1} << 20);
    ASSERT_FALSE(page.groups.empty());
    rows += page.groups.size();
    request.after = page.last;
  } while (request.after != 0);
  EXPECT_EQ(rows, 12u);
}

// ---- nodes of choice

TEST_F(GroupTest, ANodeOfChoiceIsWaitedForUnlessItCannotBe) {
  join(1, {{"CPU", 1}});
  join(2, {{"CPU", 1}});
  const auto on = [&](std::uint64_t node, bool soft, double cpus = 1) {
    auto g = gang(job_, 1, {{"CPU", cpus}});
    g.where.node = NodeId{node};
    g.where.soft = soft;
    return g;
  };
  const auto first = on(2, false), second = on(2, false), third = on(9, true);
  ASSERT_TRUE(state_.step(GangRequested{first}));
  EXPECT_EQ(state_.actor(first.actors[0].id)->node, NodeId{2});
  ASSERT_TRUE(state_.step(GangRequested{second}));
  EXPECT_EQ(state_of(second.actors[0].id), ActorState::kPending);  // although node 1 has room
  ASSERT_TRUE(state_.step(GangRequested{third}));
  EXPECT_EQ(state_.actor(third.actors[0].id)->node, NodeId{1});  // no node 9 exists
  EXPECT_EQ(state_.step(GangRequested{on(9, false)}).error().reason(), "Unschedulable");
  EXPECT_EQ(state_.step(GangRequested{on(2, false, 2)}).error().reason(), "Unschedulable");
  state_.step(NodeLost{NodeId{2}, unavailable("gone")});
  EXPECT_EQ(state_of(second.actors[0].id), ActorState::kDead);
  EXPECT_EQ(state_.actor(second.actors[0].id)->cause->message(), "actor A died: its required node was lost");
}

TEST_F(GroupTest, ANodeOfChoiceThatHasNoRoomIsReplacedOrRefusedAtOnce) {
  join(1, {{"CPU", 1}});
  join(2, {{"CPU", 1}});
  const auto at_once = [&](bool soft) {
    auto g = gang(job_, 1, {{"CPU", 1}});
    g.where.node = NodeId{2};
    g.where.soft = soft;
    g.where.at_once = true;
    EXPECT_TRUE(state_.step(GangRequested{g}));
    return g.actors[0].id;
  };
  EXPECT_EQ(state_.actor(at_once(false))->node, NodeId{2});
  const ActorId refused = at_once(false);
  EXPECT_EQ(state_of(refused), ActorState::kDead);
  EXPECT_EQ(state_.actor(refused)->cause->reason(), "Unschedulable");
  EXPECT_NE(state_.actor(refused)->cause->message().find("has no room for it now"), std::string::npos);
  EXPECT_EQ(state_.actor(at_once(true))->node, NodeId{1});
  const ActorId waits = at_once(true);  // both nodes are full
  EXPECT_EQ(state_of(waits), ActorState::kPending);
  join(3, {{"CPU", 1}});
  EXPECT_EQ(state_.actor(waits)->node, NodeId{3});
}

TEST_F(GroupTest, AllBundlesGoToNodesWithOneValueOfALabel) {
  const auto join_in = [&](std::uint64_t id, const std::string& rack) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.resources = of({{"CPU", 1}});
    if (!rack.empty()) n.labels = {{"rack", rack}};
    ASSERT_TRUE(state_.step(NodeJoined{n}));
  };
  auto g = group({{{"CPU", 1}}, {{"CPU", 1}}}, actors::Strategy::kPack);
  g.together = "rack";
  join_in(1, "");
  join_in(2, "");
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  EXPECT_EQ(state_.group(g.id)->pending_reason, "no node has the label rack");
  join_in(3, "a");
  join_in(4, "b");
  pass(1s);
  state_.step(Tick{});
  EXPECT_NE(state_.group(g.id)->pending_reason.find("on nodes with one value of the label rack"), std::string::npos)
      << state_.group(g.id)->pending_reason;
  join_in(5, "b");
  EXPECT_EQ(nodes_of(g), (std::set{NodeId{4}, NodeId{5}}));
  // A bundle that lost its node stays with the others.
  state_.step(NodeLost{NodeId{5}, unavailable("gone")});
  join_in(6, "a");
  EXPECT_EQ(state_of_group(g), "RESCHEDULING");
  join_in(7, "b");
  EXPECT_EQ(nodes_of(g), (std::set{NodeId{4}, NodeId{7}}));
}

// The first loss ties its bundle to the rack of the other one, the second frees both, and no node gains room.
TEST_F(GroupTest, BundlesThatLostTheirRackGoToAnother) {
  const auto join_in = [&](std::uint64_t id, const std::string& rack) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.resources = of({{"CPU", 1}});
    n.labels = {{"rack", rack}};
    ASSERT_TRUE(state_.step(NodeJoined{n}));
  };
  auto g = group({{{"CPU", 1}}, {{"CPU", 1}}}, actors::Strategy::kPack);
  g.together = "rack";
  join_in(1, "a");
  join_in(2, "a");
  ASSERT_TRUE(state_.step(GroupRequested{g}));
  state_.step(NodeLost{NodeId{2}, unavailable("gone")});
  join_in(3, "b");
  join_in(4, "b");
  ASSERT_TRUE(state_.step(SchedulingSet{{NodeId{1}, actors::NodeScheduling::kDraining, 60'000}}));
  EXPECT_EQ(state_of_group(g), "RESCHEDULING");
  state_.step(NodeLost{NodeId{1}, unavailable("gone")});
  EXPECT_EQ(state_of_group(g), "CREATED");
  EXPECT_EQ(nodes_of(g), (std::set{NodeId{3}, NodeId{4}}));
}

TEST_F(GroupTest, SpreadGoesWhereFewAre) {
  join(1, {{"CPU", 4}});
  join(2, {{"CPU", 4}});
  std::map<NodeId, int> count;
  for (int i = 0; i < 4; ++i) {
    auto g = gang(job_, 1, {{"CPU", 1}});
    g.where.spread = true;
    ASSERT_TRUE(state_.step(GangRequested{g}));
    ++count[state_.actor(g.actors[0].id)->node];
  }
  EXPECT_EQ(count[NodeId{1}], 2);
}

TEST_F(GroupTest, LabelsAreMatched) {
  using actors::LabelMatch;
  const std::map<std::string, std::string> has = {{"zone", "a"}, {"disk", "fast"}};
  EXPECT_TRUE(matches(has, {}));
  EXPECT_TRUE(matches(has, {LabelMatch{"zone", {"a", "b"}, false}, LabelMatch{"disk", {"slow"}, true}}));
  EXPECT_FALSE(matches(has, {LabelMatch{"zone", {"b"}, false}}));
  EXPECT_TRUE(matches(has, {LabelMatch{"rack", {"r"}, true}}));
  EXPECT_FALSE(matches(has, {LabelMatch{"rack", {}, false}}));
  EXPECT_TRUE(matches(has, {LabelMatch{"zone", {}, false}}));
  EXPECT_FALSE(matches(has, {LabelMatch{"zone", {}, true}}));
  actors::RegisterNode n;
  n.id = NodeId{5};
  n.resources = of({{"CPU", 1}});
  n.labels = has;
  join(1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(NodeJoined{n}));
  auto g = gang(job_, 1, {{"CPU", 1}});
  g.where.labels = {{"disk", {"fast"}, false}};
  ASSERT_TRUE(state_.step(GangRequested{g}));
  EXPECT_EQ(state_.actor(g.actors[0].id)->node, NodeId{5});
  auto never = gang(job_, 1, {{"CPU", 1}});
  never.where.labels = {{"disk", {"tape"}, false}};
  ASSERT_TRUE(state_.step(GangRequested{never}));
  EXPECT_EQ(state_.status().pending.at(0), "actor A: no node has the labels disk=tape");
}

TEST_F(GroupTest, LabelsThatArePreferredAreMatchedWhereThereIsRoomOnANodeWithThem) {
  using actors::LabelMatch;
  const auto labelled = [&](std::uint64_t id, const std::string& zone, const std::string& disk) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.resources = of({{"CPU", 2}});
    n.labels = {{"zone", zone}, {"disk", disk}};
    ASSERT_TRUE(state_.step(NodeJoined{n}));
  };
  labelled(1, "a", "slow");
  labelled(2, "b", "fast");
  labelled(3, "b", "slow");
  const auto node_of = [&](std::size_t count, std::vector<LabelMatch> hard, std::vector<LabelMatch> soft) {
    auto g = gang(job_, count, {{"CPU", 1}});
    g.where.labels = std::move(hard);
    g.where.prefers = std::move(soft);
    EXPECT_TRUE(state_.step(GangRequested{g}));
    return state_.actor(g.actors.back().id)->node;
  };
  const LabelMatch in_b{"zone", {"b"}, false}, fast{"disk", {"fast"}, false}, tape{"disk", {"tape"}, false};
  EXPECT_EQ(node_of(1, {}, {in_b, fast}), NodeId{2});
  EXPECT_EQ(node_of(1, {in_b}, {tape}), NodeId{2});                             // no node has the preferred label
  EXPECT_EQ(node_of(1, {in_b}, {fast}), NodeId{3});                             // no room on the node with the preferred label
  EXPECT_EQ(node_of(2, {}, {in_b}), NodeId{1});                                 // the gang goes elsewhere as a whole
  EXPECT_EQ(node_of(1, {}, {LabelMatch{"zone", {"a"}, true}}), NodeId{3});      // a negated preference
  EXPECT_EQ(node_of(1, {LabelMatch{"zone", {"a"}, false}}, {in_b}), NodeId{});  // a required label: it waits
  EXPECT_EQ(state_.status().pending.size(), 1u);
}

TEST_F(GroupTest, EachBundleGoesToANodeWithItsLabels) {
  using actors::Strategy;
  const auto join_labelled = [&](std::uint64_t id, const std::map<std::string, std::string>& labels) {
    actors::RegisterNode n;
    n.id = NodeId{id};
    n.resources = of({{"CPU", 2}});
    n.labels = labels;
    ASSERT_TRUE(state_.step(NodeJoined{n}));
  };
  const auto labelled = [&](Strategy strategy, const std::vector<std::string>& zones) {
    auto g = group(std::vector<std::map<std::string, double>>(zones.size(), {{"CPU", 1}}), strategy);
    for (const auto& zone : zones) {
      g.labels.push_back(zone.empty() ? std::vector<actors::LabelMatch>() : std::vector{actors::LabelMatch{"zone", {zone}, false}});
    }
    return g;
  };
  join(1, {{"CPU", 2}});
  join_labelled(2, {{"zone", "a"}});
  join_labelled(3, {{"zone", "b"}});
  for (const auto strategy : {Strategy::kPack, Strategy::kSpread, Strategy::kStrictSpread}) {
    const auto g = labelled(strategy, {"b", "", "a"});
    ASSERT_TRUE(state_.step(GroupRequested{g}));
    EXPECT_EQ(state_of_group(g), "CREATED");
    EXPECT_EQ(state_.group(g.id)->nodes[0], NodeId{3});
    EXPECT_EQ(state_.group(g.id)->nodes[2], NodeId{2});
    state_.check_invariants();
    state_.step(GroupRemoved{g.id});
  }
  const auto together = labelled(Strategy::kStrictPack, {"a", ""});
  ASSERT_TRUE(state_.step(GroupRequested{together}));
  EXPECT_EQ(nodes_of(together), std::set<NodeId>{NodeId{2}});
  state_.step(GroupRemoved{together.id});
  const auto torn = labelled(Strategy::kStrictPack, {"a", "b"});
  ASSERT_TRUE(state_.step(GroupRequested{torn}));
  EXPECT_EQ(state_of_group(torn), "PENDING");
  EXPECT_NE(state_.status().pending.at(0).find("needs CPU 2, labels zone=a 1, labels zone=b 1 on one node"), std::string::npos)
      << state_.status().pending.at(0);
  const auto never = labelled(Strategy::kPack, {"a", "c"});
  ASSERT_TRUE(state_.step(GroupRequested{never}));
  EXPECT_NE(state_.status().pending.at(1).find("no node has the labels zone=c"), std::string::npos) << state_.status().pending.at(1);
  join_labelled(4, {{"zone", "c"}});
  EXPECT_EQ(state_.group(never.id)->nodes, (std::vector{NodeId{2}, NodeId{4}}));
  state_.step(NodeLost{NodeId{4}, unavailable("gone").with_reason("NodeLost")});  // its bundle needs the same label
  EXPECT_EQ(state_of_group(never), "RESCHEDULING");
  join_labelled(5, {{"zone", "c"}});
  EXPECT_EQ(state_.group(never.id)->nodes, (std::vector{NodeId{2}, NodeId{5}}));
  auto wrong = labelled(Strategy::kPack, {"a"});
  wrong.labels.push_back({});
  EXPECT_EQ(state_.step(GroupRequested{wrong}).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal::scheduler
