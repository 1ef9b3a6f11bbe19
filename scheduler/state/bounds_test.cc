// The bounds of rows: what the head refuses, and what it cuts.
#include "scheduler/state/bounds.h"

#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class BoundsTest : public ClusterStateTest {
 protected:
  // The reason of an error, or "" on success.
  static std::string reason_of(const auto& result) { return result ? "" : result.error().reason(); }
};

TEST_F(BoundsTest, AttributesAreBoundedTogether) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  const auto g = gang(job, 1, {{"CPU", 1}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const ActorId actor = g.actors[0].id;
  taken<Warn>();
  std::map<std::string, std::string> many;
  for (int i = 0; i < 1'500; ++i) many["first" + std::to_string(i)] = "v";
  state_.step(AttributesSet{{actor, many}});
  EXPECT_EQ(state_.actor(actor)->attributes.size(), 1'500u);
  EXPECT_TRUE(taken<Warn>().empty());
  state_.step(AttributesSet{{actor, many}});  // the same names again
  EXPECT_TRUE(taken<Warn>().empty());
  for (const auto& [name, value] : std::map<std::string, std::string>(many)) many["second" + name] = value;
  state_.step(AttributesSet{{actor, many}});
  state_.step(AttributesSet{{actor, {{"long", std::string(900'000, 'v')}}}});
  const auto warnings = taken<Warn>();  // which also checks that the next head can read the rows
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_EQ(warnings[0].job, job);
  EXPECT_NE(warnings[1].text.find("at most 65536"), std::string::npos) << warnings[1].text;
  EXPECT_EQ(state_.actor(actor)->attributes.size(), 1'500u);
}

TEST_F(BoundsTest, RequestsForRowsBeyondABoundAreRefused) {
  const JobId driving = driver();
  const std::string text(actors::RowBounds::kMaxText + 1, 'x');
  actors::JobSpec job;
  job.wait = true;
  job.name = text;
  EXPECT_EQ(reason_of(state_.step(JobSubmitted{job})), "TooLarge");
  job.name = "job";
  job.num_workers = 4096;
  for (int i = 0; i < 30; ++i) job.resources.set_units("name" + std::to_string(i), 1);
  EXPECT_EQ(reason_of(state_.step(JobSubmitted{job})), "TooLarge");
  job.num_workers = 0;
  job.resources = {};
  job.submission.metadata = {{"large", std::string(70'000, 'x')}};
  EXPECT_EQ(reason_of(state_.step(JobSubmitted{job})), "TooLarge");
  auto named = gang(driving, 1, {});
  named.actors[0].class_name = text;
  EXPECT_EQ(reason_of(state_.step(GangRequested{named})), "TooLarge");
  actors::GroupSpec group;
  group.id = GroupId{5};
  group.job = driving;
  for (int i = 0; i < 4096; ++i) {
    auto& bundle = group.bundles.emplace_back();
    for (int j = 0; j < 4; ++j) bundle.set_units("resource" + std::to_string(j), 1);
  }
  EXPECT_EQ(reason_of(state_.step(GroupRequested{group})), "TooLarge");
  actors::RegisterNode node;
  node.id = NodeId{3};
  node.labels = {{"label", std::string(70'000, 'x')}};
  EXPECT_EQ(reason_of(state_.step(NodeJoined{node})), "TooLarge");
  node.labels.clear();
  node.resources.set_units(std::string(301, 'x'), 1);
  EXPECT_EQ(reason_of(state_.step(NodeJoined{node})), "TooLarge");
  check();
}

TEST_F(BoundsTest, AGroupOfAsManyBundlesAsAreAllowedIsStoredAndRead) {
  actors::GroupSpec group;
  group.id = GroupId{5};
  group.job = driver();
  for (std::size_t i = 0; i < actors::GroupSpec::kMaxBundles; ++i) {
    for (const char* name : {"CPU", "GPU", "memory"})
      (i < group.bundles.size() ? group.bundles[i] : group.bundles.emplace_back()).set_units(name, 1);
  }
  ASSERT_TRUE(state_.step(GroupRequested{group}));
  check();
  const auto row = actors::from_bytes<actors::GroupRow>(to_bytes(*state_.group(group.id)));
  ASSERT_TRUE(row) << row.error().message();
  EXPECT_EQ(row->bundles.size(), actors::GroupSpec::kMaxBundles);
}

TEST_F(BoundsTest, TheRoleOfAProcessWithTheLongestClassNameCanBeReported) {
  auto named = gang(driver(), 1, {});
  std::size_t longest = actors::RowBounds::kMaxText;
  do {
    named.actors[0].class_name = std::string(longest, 'x');
  } while (!state_.step(GangRequested{named}) && longest-- > 0);
  actors::WorkerUpdate update;
  update.role = "actor " + named.actors[0].class_name;
  EXPECT_TRUE(actors::from_bytes<actors::WorkerUpdate>(to_bytes(update)));
}

TEST_F(BoundsTest, TheSumOfHugeNodesEndsAtTheRangeOfTheType) {
  for (const std::uint64_t id : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
    actors::RegisterNode node;
    node.id = NodeId{id};
    node.resources.set_units("CPU", actors::RowBounds::kMaxUnits);
    ASSERT_TRUE(state_.step(NodeJoined{node}));
  }
  const auto status = actors::from_bytes<actors::ClusterStatus>(to_bytes(state_.status()));
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(status->total.units("CPU"), INT64_MAX);
  check();
}

TEST_F(BoundsTest, SumsBeyondTheRangeOfOneAmountStayExact) {
  constexpr double kMost = 1e14;  // bytes, of a node; ten such nodes exceed the range
  const JobId job = driver();
  for (std::uint64_t id = 1; id <= 10; ++id) join(id, {{"memory", kMost}});
  const auto g = gang(job, 10, {{"memory", kMost}});
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto starts = taken<StartWorkerOn>();
  ASSERT_EQ(starts.size(), 10u);
  EXPECT_EQ(state_.status().available.units("memory"), 0);
  dies(starts[0], 1, "it failed");
  check();  // also checks the job's share
  const auto status = state_.status();
  EXPECT_EQ(status.total.units("memory") - status.available.units("memory"), 9 * of({{"memory", kMost}}).units("memory"));
  for (std::uint64_t id = 1; id <= 10; ++id) {
    state_.step(NodeLost{NodeId{id}, unavailable("gone")});
    check();
  }
}

// The cause has what the process wrote last, and the reason why its actor waits again begins with it.
TEST_F(BoundsTest, ARowWithALongCauseCanBeReadAndSent) {
  const JobId job = driver();
  join(1, {{"CPU", 1}});
  auto g = gang(job, 1, {{"CPU", 1}});
  g.max_restarts = -1;
  ASSERT_TRUE(state_.step(GangRequested{g}));
  const auto s = taken<StartWorkerOn>().at(0);
  ready(s);
  pass(20s);
  Error cause = unavailable(std::string(300'000, '\xff')).with_hint(std::string(300'000, '\xff')).with_reason(std::string(300'000, '\xff'));
  for (int i = 0; i < 16; ++i) cause = std::move(cause).in(std::string(300'000, '\xff'));
  state_.step(NodeLost{NodeId{1}, cause});
  const auto notices = taken<NotifyActor>();
  ASSERT_FALSE(notices.empty());
  EXPECT_LE(to_bytes(notices[0].row).size(), actors::RowBounds::kMaxRow);
  EXPECT_LE(state_.actor(g.actors[0].id)->pending_reason.size(), actors::RowBounds::kMaxText);
}

}  // namespace
}  // namespace shoal::scheduler
