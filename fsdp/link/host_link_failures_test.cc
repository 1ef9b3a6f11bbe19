#include "fsdp/link/host_link_fixture.h"

namespace shoal::fsdp {
namespace {

TEST_F(HostLinkTest, DataThatAreLongUnderWayAreNoDeadlock) {
  const auto clock = std::make_shared<HastyClock>(clock_);
  model_clock_ = clock;
  // Rows and sums are held back for 120 readings, each a tenth of a second: several times as long as the proof of a deadlock takes.
  const int until = 120;
  traffic_.held = [&](Channel channel) {
    return (channel == Channel::kData || channel == Channel::kResults) && clock->num_reads() < until;
  };
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    const auto read = model.unshard(0);
    ASSERT_TRUE(read) << read.error().to_string();
  });
}

TEST_F(HostLinkTest, ARankThatEndsInBackwardHoldsUpNoOther) {
  const auto clock = std::make_shared<HastyClock>(clock_);
  model_clock_ = clock;
  on_ranks({4, 1}, {0, 0, 1, 1}, [&](ShardedModel& model) {
    Ended unused;
    std::vector<std::vector<float>> own[2];
    ASSERT_TRUE(model.enter(true));
    for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
    ASSERT_TRUE(backward(model, 1, 0, own[1]));
    if (model.rank() == 1) return;  // has published unit 1, not unit 0
    auto ended = backward(model, 0, 0, own[0]);
    if (ended) ended = model.finish_backward(true);
    ASSERT_FALSE(ended);
    EXPECT_NE(ended.error().message().find("rank"), std::string::npos);
  });
  EXPECT_LT(clock->num_reads(), 600);  // the links' ends did not wait for sums that can never be made
}

TEST_F(HostLinkTest, DifferentModelsAreAnErrorOnEveryRank) {
  std::thread other([&] {
    const auto one = make(1, 2, {0, 1}, {layout_of(1), layout_of(0)});
    EXPECT_EQ(one->unshard(0).error().reason(), "Diverged");
  });
  const auto zero = make(0, 2, {0, 1}, {layout_of(0), layout_of(1)});
  EXPECT_EQ(zero->unshard(0).error().reason(), "Diverged");
  other.join();
}

TEST_F(HostLinkTest, RanksThatReduceDifferentUnitsGetAnError) {
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    Ended unused;
    ASSERT_TRUE(model.enter(true));
    for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
    std::vector<std::vector<float>> own;
    auto ended = backward(model, static_cast<std::size_t>(model.rank()), 0, own);
    if (ended) ended = model.finish_backward(true);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
  });
}

TEST_F(HostLinkTest, WaitsThatCannotEndAreAnErrorOnEveryHost) {
  on_ranks({3, 1}, {0, 0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(false));
    ASSERT_TRUE(model.unshard(0));
    // Rank 0 waits for the others' windows, the others for its part of a sum.
    const auto ended =
        model.rank() == 0 ? model.leases().open_window("a test") : Result<void>(model.reductions().sum_over_ranks(1).map([](double) {}));
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
    EXPECT_NE(ended.error().message().find("all ranks wait for each other"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, TheDeathOfARankIsAnErrorOnEveryHost) {
  std::latch all_read(4);
  on_ranks({4, 1}, {0, 0, 1, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 3) {
      network_->kill(3, "its connection was reset");
      return;
    }
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    if (model.rank() == 2) return;  // its node would report the death on the host's page
    EXPECT_EQ(ended.error().reason(), "ActorDied");
    EXPECT_NE(ended.error().message().find("rank 3 is gone: its connection was reset"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, ARankThatLeftIsNamedOnEveryHost) {
  std::latch all_read(3);
  on_ranks({3, 1}, {0, 1, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 1) return;
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "ActorDied");
    EXPECT_NE(ended.error().message().find("rank 1 has left"), std::string::npos) << ended.error().to_string();
  });
}

TEST_F(HostLinkTest, AKilledActorIsReportedWithItsCause) {
  std::latch all_read(2);
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    ASSERT_TRUE(model.enter(true));
    ASSERT_TRUE(model.unshard(0));
    all_read.arrive_and_wait();
    if (model.rank() == 1) {
      model.peers().mark_gone("ShardActor rank 1 ended: killed by a test");
      return;
    }
    const auto ended = model.leases().open_window("a test");
    ASSERT_FALSE(ended);
    EXPECT_NE(ended.error().message().find("killed by a test"), std::string::npos) << ended.error().to_string();
  });
}

}  // namespace
}  // namespace shoal::fsdp
