// Actors that existing processes host, such as the ShardActors of ranks.
#include "scheduler/state/cluster_state_fixture.h"

namespace shoal::scheduler {
namespace {

class HostedTest : public ClusterStateTest {
 protected:
  HostedTest() : job_(driver()) {
    join(1, {{"CPU", 2}});
    for (std::uint64_t w : {11, 12})
      state_.step(WorkerUpdated{NodeId{1}, {WorkerId{w}, WorkerState::kRunning, static_cast<pid_t>(w), "", 0, {}, job_, "rank"}});
    actors();
  }
  actors::HostActor shard(int rank) {
    return {ActorId{static_cast<std::uint64_t>(500 + rank)}, "ShardActor", "mesh-0", rank,      2,
            WorkerId{static_cast<std::uint64_t>(11 + rank)}, job_,         0,        "unix:@r", {{"rows", "10"}}};
  }
  JobId job_;
};

TEST_F(HostedTest, ShardActorsArePlacedAsAGangInTheirRanksProcesses) {
  ASSERT_TRUE(state_.step(ActorHosted{shard(1)}));
  EXPECT_TRUE(taken<AnswerHosted>().empty());
  ASSERT_TRUE(state_.step(ActorHosted{shard(0)}));
  const auto reported = taken<AnswerHosted>();
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0].result->members, (std::vector<ActorId>{ActorId{500}, ActorId{501}}));
  EXPECT_EQ(reported[0].result->generation, 1u);
  state_.step(AttributesSet{{ActorId{500}, {{"bytes", "4096"}}}});
  EXPECT_EQ(state_.actor(ActorId{500})->attributes.at("bytes"), "4096");
}

TEST_F(HostedTest, ARepeatedRequestGetsTheSameAnswer) {
  ASSERT_TRUE(state_.step(ActorHosted{shard(1)}));
  ASSERT_TRUE(state_.step(ActorHosted{shard(1)}));
  EXPECT_TRUE(taken<AnswerHosted>().empty());
  ASSERT_TRUE(state_.step(ActorHosted{shard(0)}));
  const auto first = taken<AnswerHosted>();
  ASSERT_EQ(first.size(), 2u);
  ASSERT_TRUE(state_.step(ActorHosted{shard(0)}));
  const auto again = taken<AnswerHosted>();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].actor, ActorId{500});
  EXPECT_EQ(again[0].result->gang, first[0].result->gang);
  EXPECT_EQ(again[0].result->members, first[0].result->members);
  auto other = shard(0);
  other.worker = WorkerId{12};
  EXPECT_FALSE(state_.step(ActorHosted{other}));  // an actor of another process
}

TEST_F(HostedTest, ARankOutsideItsGangIsRefused) {
  for (const auto& [rank, world] : std::vector<std::pair<int, int>>{{-1, 2}, {2, 2}, {0, 0}}) {
    auto bad = shard(0);
    bad.rank = rank;
    bad.world_size = world;
    EXPECT_FALSE(state_.step(ActorHosted{bad}));
  }
}

TEST_F(HostedTest, KillingOneReachesItsProcessNotThroughASignal) {
  ASSERT_TRUE(state_.step(ActorHosted{shard(1)}));
  ASSERT_TRUE(state_.step(ActorHosted{shard(0)}));
  actors();
  ASSERT_TRUE(state_.step(ActorKilled{ActorId{501}}));
  const auto kills = taken<KillHostedOn>();
  ASSERT_EQ(kills.size(), 1u);
  EXPECT_EQ(kills[0].message.worker, WorkerId{12});
}

TEST_F(HostedTest, AMemberThatDiesBeforeTheGangIsCompleteFailsTheWaiters) {
  ASSERT_TRUE(state_.step(ActorHosted{shard(1)}));
  state_.step(WorkerUpdated{NodeId{1}, {WorkerId{12}, WorkerState::kExited, 12, "", 137, unavailable("was killed by SIGKILL"), job_, {}}});
  const auto reported = taken<AnswerHosted>();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_FALSE(reported[0].result);
}

TEST_F(HostedTest, AMemberThatAsksAgainAfterItsGangFailedIsRefused) {
  auto first = shard(0), second = shard(1);
  first.world_size = second.world_size = 3;
  ASSERT_TRUE(state_.step(ActorHosted{first}));
  ASSERT_TRUE(state_.step(ActorHosted{second}));
  state_.step(WorkerUpdated{NodeId{1}, {WorkerId{12}, WorkerState::kExited, 12, "", 137, unavailable("was killed by SIGKILL"), job_, {}}});
  const auto answers = taken<AnswerHosted>();
  ASSERT_EQ(answers.size(), 2u);
  const auto again = state_.step(ActorHosted{first});  // the answer was lost with its connection
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), answers[0].result.error().message());
}

}  // namespace
}  // namespace shoal::scheduler
