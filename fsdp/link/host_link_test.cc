#include "fsdp/link/host_link_fixture.h"

namespace shoal::fsdp {
namespace {

struct Placement {
  Grid grid;
  HostOfRank hosts;
};

class HostLinkPlacementTest : public HostLinkTest, public testing::WithParamInterface<Placement> {};

TEST_P(HostLinkPlacementTest, TrainsToTheBitsOfOneHost) { expect_same_as_one_host(GetParam().grid, GetParam().hosts); }

INSTANTIATE_TEST_SUITE_P(Placements, HostLinkPlacementTest,
                         testing::Values(Placement{{2, 1}, {0, 1}}, Placement{{3, 1}, {0, 1, 2}}, Placement{{4, 1}, {0, 0, 1, 1}},
                                         Placement{{4, 1}, {0, 1, 0, 1}}, Placement{{3, 1}, {0, 1, 1}},
                                         Placement{{6, 1}, {0, 0, 0, 1, 1, 1}}, Placement{{5, 1}, {0, 0, 0, 0, 1}},
                                         Placement{{4, 2}, {0, 0, 1, 1}}, Placement{{4, 2}, {0, 1, 0, 1}}, Placement{{4, 2}, {0, 1, 2, 3}},
                                         Placement{{2, 2}, {0, 1}}));

TEST_F(HostLinkTest, RanksThatStandForSeveralLeavesTrainToTheBitsOfOneHost) {
  places_ = {0, 1, 2, 4, 6};
  expect_same_as_one_host({5, 1}, {0, 0, 1, 1, 1});
  expect_same_as_one_host({5, 1}, {0, 1, 0, 1, 1});
  places_ = {0, 2, 3};
  expect_same_as_one_host({3, 1}, {0, 1, 1});
}

TEST_F(HostLinkTest, LargeSumsOfSeveralRanksTravelInPieces) {
  layouts_ = {Layout::make({{"large", {4096, 700}}}).value()};
  expect_same_as_one_host({4, 1}, {0, 0, 1, 1});
}

TEST_F(HostLinkTest, SumsOfDoublesThatTravelInHalfPrecisionHaveTheBitsOfOneHost) {
  Parameter p{"w", {16, 5}, DType::kFloat64};
  p.reduce_dtype = DType::kBFloat16;
  const auto reduce = [&](const HostOfRank& hosts) {
    layouts_ = {Layout::make({p}).value()};
    std::map<int, std::vector<double>> out;
    on_ranks({4, 1}, hosts, [&](ShardedModel& model) {
      ASSERT_TRUE(model.enter(true));
      ASSERT_TRUE(model.unshard(0));
      std::vector<double> whole(80), own(20);
      for (std::size_t k = 0; k < 80; ++k) whole[k] = 1.0 / (1 + model.rank()) + 1e-3 * static_cast<double>(k);
      const Reducer::Gradient g{reinterpret_cast<const std::byte*>(whole.data()), reinterpret_cast<std::byte*>(own.data()), false,
                                DType::kFloat64};
      ASSERT_TRUE(model.publish(0, std::span(&g, 1), {0.3}));
      ASSERT_TRUE(model.finish_backward(true));
      const std::lock_guard lock(mutex_);
      out[model.rank()] = own;
    });
    return out;
  };
  const auto several = reduce({0, 0, 1, 1}), one = reduce({0, 0, 0, 0});
  EXPECT_EQ(several, one);
  EXPECT_NE(one.at(0)[0], 0);
}

TEST_F(HostLinkTest, RanksMaySkipUnits) {
  Uses uses;
  uses.skips = [](int rank, int step, std::size_t unit) { return rank == step % 4 && unit == 1; };
  expect_same_as_one_host({4, 1}, {0, 0, 1, 1}, uses);
}

TEST_F(HostLinkTest, RanksMayEvaluateAtTheirOwnPace) {
  Uses uses;
  uses.evaluations = [](int rank, int step) { return 3 * rank + step; };
  expect_same_as_one_host({3, 1}, {0, 1, 1}, uses);
}

TEST_F(HostLinkTest, AStepThatFailedOnOneRankIsRepeatedByAll) {
  Uses uses;
  uses.fails = [](int rank, int step) { return rank == 2 && step == 1; };
  for (int i = 0; i < 5; ++i) expect_same_as_one_host({4, 1}, {0, 0, 1, 1}, uses);
}

TEST_F(HostLinkTest, EachHostGetsARowOnceAndSendsOneSumPerRow) {
  const Grid grid(4, 1);
  const Hosts hosts({0, 0, 1, 1});
  layouts_ = {Layout::make({{"w", {64, 50}}}).value()};
  run(grid, {0, 0, 1, 1});
  // Three steps: rows of three versions, of half of the parameters; sums for the other half.
  const std::size_t half = 64 * 50 * 4 / 2;
  EXPECT_EQ(traffic_.between(hosts, 0, 1), 3 * 2 * half);
  EXPECT_EQ(traffic_.between(hosts, 1, 0), 3 * 2 * half);
}

TEST_F(HostLinkTest, RowsOfAFrozenUnitAreSentOnceAndAgainWhenTheyChange) {
  const Hosts hosts({0, 1});
  Parameter frozen{"w", {6, 5}};
  frozen.requires_grad = false;
  layouts_ = {Layout::make({frozen}).value()};
  std::vector<std::size_t> sent;
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    fill(model, {2, 1});
    for (int version = 0; version < 4; ++version) {
      if (version == 3) reinterpret_cast<float*>(model.units()[0]->own(0))[1] += 1;
      ASSERT_TRUE(model.enter(true));
      ASSERT_TRUE(model.unshard(0));
      EXPECT_EQ(reinterpret_cast<const float*>(model.units()[0]->whole(0))[16], 3.7f + 0.37f + (version == 3 ? 1.0f : 0.0f));
      ASSERT_TRUE(model.leases().open_window("a test"));
      if (model.rank() == 0) sent.push_back(traffic_.between(hosts, 0, 1));
    }
  });
  EXPECT_EQ(sent, (std::vector<std::size_t>{60, 60, 60, 120}));
}

TEST_F(HostLinkTest, SumsOverRanksAreTheSameOnAllHosts) {
  on_ranks({3, 1}, {0, 0, 1}, [&](ShardedModel& model) {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(model.reductions().sum_over_ranks(model.rank() + i).value(), 3 + 3 * i);
  });
}

TEST_F(HostLinkTest, RanksWithoutBatchesServeTheOthers) {
  on_ranks({2, 1}, {0, 1}, [&](ShardedModel& model) {
    std::vector<std::vector<float>> own[2];
    Ended unused;
    ASSERT_TRUE(model.enter(true));
    if (model.rank() == 0) {
      for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(forward(model, u, true, unused));
      for (std::size_t u = 2; u-- > 0;) ASSERT_TRUE(backward(model, u, 0, own[u]));
      ASSERT_TRUE(model.finish_backward(true));
      model.join();
    } else {
      model.join();
      std::vector<std::size_t> served;
      while (true) {
        const auto next = model.next_service();
        ASSERT_TRUE(next) << next.error().to_string();
        if (next->what != ShardedModel::Service::What::kPublish) break;
        served.push_back(next->unit);
        ASSERT_TRUE(backward(model, next->unit, 0, own[next->unit], true));
      }
      EXPECT_EQ(served, (std::vector<std::size_t>{1, 0}));
      ASSERT_TRUE(model.finish_backward(true));
    }
  });
}

}  // namespace
}  // namespace shoal::fsdp
