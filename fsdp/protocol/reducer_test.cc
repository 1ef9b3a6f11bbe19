#include "fsdp/protocol/reducer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::fsdp {
namespace {

// `world` ranks on one thread, in an order that the test chooses.
class ReducerTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    world_ = GetParam();
    layouts_.push_back(Layout::make({{"a", {13, 3}, DType::kFloat32, true}, {"b", {5}, DType::kFloat32, true}}).value());
    layouts_.push_back(Layout::make({{"c", {2, 7}, DType::kFloat32, true}}).value());
    for (const auto& l : layouts_) pointers_.push_back(&l);
    const auto zeroed = [this](std::size_t bytes) {
      memories_.push_back(runtime::make_memory("m", bytes).value());
      mappings_.push_back(runtime::map(memories_.back(), bytes, runtime::Access::kReadWrite).value());
      return mappings_.back().data();
    };
    control_ = std::make_unique<Control>(zeroed(Control::bytes(world_, 0)), world_, 0);
    slots_ = std::make_unique<Slots>(zeroed(Slots::bytes(world_, 0, pointers_, kSlots)), world_, 0, pointers_, kSlots);
    for (int r = 0; r < world_; ++r) reducers_.push_back(std::make_unique<Reducer>(*control_, r, world_, pointers_, *slots_, nullptr));
  }

  // The gradient of rank r for parameter i of unit u in round n.
  std::vector<float> gradient(int r, std::uint32_t u, std::size_t i, int n) const {
    std::mt19937 random(static_cast<unsigned>(r * 1000 + static_cast<int>(u) * 100 + static_cast<int>(i) * 10 + n));
    std::normal_distribution<float> normal;
    std::vector<float> out(layouts_[u].placed()[i].bytes / 4);
    for (auto& x : out) x = normal(random);
    return out;
  }

  struct Rank1 {
    std::vector<std::vector<float>> whole, own;
    std::vector<Reducer::Gradient> gradients;
  };
  Rank1 bring(int r, std::uint32_t u, int n, bool accumulate = false, int absent = -1) {
    Rank1 out;
    const auto& placed = layouts_[u].placed();
    for (std::size_t i = 0; i < placed.size(); ++i) {
      out.whole.push_back(gradient(r, u, i, n));
      out.own.emplace_back(Layout::owned_bytes(placed[i], world_, r) / 4, accumulate ? 1.0f : -7.0f);
    }
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const bool gone = static_cast<int>(i) == absent;
      out.gradients.push_back({gone ? nullptr : reinterpret_cast<const std::byte*>(out.whole[i].data()),
                               reinterpret_cast<std::byte*>(out.own[i].data()), accumulate});
    }
    return out;
  }
  // The sum over ranks [begin, begin + size) with a gradient, along the tree of ranks.
  std::optional<float> sum(std::uint32_t u, std::size_t i, std::size_t element, int n, const std::vector<bool>& brought, int begin,
                           int size) const {
    if (begin >= world_) return std::nullopt;
    if (size == 1) return brought[static_cast<std::size_t>(begin)] ? std::optional(gradient(begin, u, i, n)[element]) : std::nullopt;
    const auto left = sum(u, i, element, n, brought, begin, size / 2), right = sum(u, i, element, n, brought, begin + size / 2, size / 2);
    return left && right ? *left + *right : left ? left : right;
  }
  // The mean over the ranks with a gradient, bit for bit.
  float expected(std::uint32_t u, std::size_t i, std::size_t element, int n, bool accumulate, const std::vector<bool>& brought) const {
    const float mean = sum(u, i, element, n, brought, 0, 8).value_or(0) * static_cast<float>(1.0 / world_);
    return accumulate ? 1.0f + mean : mean;
  }
  void expect_owned(int r, std::uint32_t u, const Rank1& got, int n, bool accumulate) {
    const auto& placed = layouts_[u].placed();
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const std::size_t first = piece_of(placed[i], world_, r).begin;
      for (std::size_t e = 0; e < got.own[i].size(); ++e) {
        ASSERT_EQ(got.own[i][e], expected(u, i, first + e, n, accumulate, std::vector<bool>(static_cast<std::size_t>(world_), true)))
            << "rank " << r << " unit " << u << " parameter " << i << " element " << e;
      }
    }
  }

  Reducer::How mean() const { return {1.0 / world_}; }

  static constexpr int kSlots = 2;
  int world_ = 1;
  std::vector<Layout> layouts_;
  std::vector<const Layout*> pointers_;
  std::vector<Fd> memories_;
  std::vector<runtime::Mapping> mappings_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Slots> slots_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
};

TEST_P(ReducerTest, EveryOwnerGetsTheMeanOfItsRowsInAnyOrderOfRanks) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    reducers_.clear();
    layouts_.clear();
    pointers_.clear();
    SetUp();
    std::mt19937 random(seed);
    constexpr int kRounds = 7;
    std::vector<std::vector<Rank1>> brought(static_cast<std::size_t>(world_));
    std::vector<int> round(static_cast<std::size_t>(world_)), done(static_cast<std::size_t>(world_));
    const bool accumulate = seed % 2;
    for (auto& b : brought) b.reserve(kRounds);
    bool all = false;
    for (int i = 0; i < 100'000 && !all; ++i) {
      const auto r = random() % static_cast<unsigned>(world_);
      auto& reducer = *reducers_[r];
      if (random() % 2 && round[r] < kRounds && reducer.has_slot()) {
        const auto u = static_cast<std::uint32_t>(round[r] % 2);
        brought[r].push_back(bring(static_cast<int>(r), u, round[r], accumulate));
        reducer.publish(u, brought[r].back().gradients, mean());
        for (auto& w : brought[r].back().whole) std::fill(w.begin(), w.end(), 1e30f);  // after publish() the gradients may be overwritten
        ++round[r];
      } else {
        ASSERT_TRUE(reducer.serve());
      }
      for (const auto& finished : reducer.take_reduced()) {
        expect_owned(static_cast<int>(r), finished.unit, brought[r][static_cast<std::size_t>(done[r])], done[r], accumulate);
        ++done[r];
      }
      all = std::all_of(done.begin(), done.end(), [](int n) { return n == kRounds; });
    }
    ASSERT_TRUE(all) << "seed " << seed;
  }
}

TEST_P(ReducerTest, AMissingGradientCountsAsZeroAndOneMissingOnAllRanksIsAbsent) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<Rank1> brought;
  for (int r = 0; r < world_; ++r) brought.push_back(bring(r, 0, 0, false, r == 1 ? 0 : -1));  // rank 1 has no gradient for `a`
  for (auto& b : brought) b.gradients[1].whole = nullptr;                                      // no rank has a gradient for `b`
  for (int r = 0; r < world_; ++r)
    reducers_[static_cast<std::size_t>(r)]->publish(0, brought[static_cast<std::size_t>(r)].gradients, mean());
  std::vector<bool> has(static_cast<std::size_t>(world_), true);
  has[1] = false;
  for (int r = 0; r < world_; ++r) {
    auto& reducer = *reducers_[static_cast<std::size_t>(r)];
    if (reducer.num_pending() > 0) {
      ASSERT_TRUE(reducer.serve().value());
    }
    const auto finished = reducer.take_reduced();
    ASSERT_EQ(finished.size(), 1u);
    EXPECT_EQ(finished[0].present, (std::vector<bool>{true, false}));
    const auto& own = brought[static_cast<std::size_t>(r)].own;
    const std::size_t first = piece_of(layouts_[0].placed()[0], world_, r).begin;
    for (std::size_t e = 0; e < own[0].size(); ++e) ASSERT_EQ(own[0][e], expected(0, 0, first + e, 0, false, has));
    for (const float x : own[1]) EXPECT_EQ(x, -7.0f);  // no rank has written to the destination
  }
}

TEST_P(ReducerTest, GradientsAreAddedAtThePlacesOfTheirRanks) {
  if (world_ != 3) GTEST_SKIP() << "needs three ranks";
  const Hosts hosts({0, 0, 0}, {0, 2, 3});
  const Slots slots(mappings_[1].data(), hosts, 0, pointers_, kSlots);
  std::vector<Rank1> brought;
  std::vector<std::unique_ptr<Reducer>> reducers;
  for (int r = 0; r < 3; ++r) {
    brought.push_back(bring(r, 0, 0));
    reducers.push_back(std::make_unique<Reducer>(*control_, r, 3, pointers_, slots, nullptr));
    reducers.back()->publish(0, brought.back().gradients, {1});
  }
  for (int r = 0; r < 3; ++r) {
    auto& reducer = *reducers[static_cast<std::size_t>(r)];
    if (reducer.num_pending() > 0) {
      ASSERT_TRUE(reducer.serve().value());
    }
    const auto& own = brought[static_cast<std::size_t>(r)].own[0];
    const std::size_t first = piece_of(layouts_[0].placed()[0], 3, r).begin;
    for (std::size_t e = 0; e < own.size(); ++e) {
      const auto of = [&](int rank) { return gradient(rank, 0, 0, 0)[first + e]; };
      ASSERT_EQ(own[e], of(0) + (of(1) + of(2)));
    }
  }
}

TEST_P(ReducerTest, ARankAtMostTwoUnitsAheadWaitsForTheSlowest) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<Rank1> kept;
  for (int n = 0; n < kSlots; ++n) {
    kept.push_back(bring(0, 0, n));
    ASSERT_TRUE(reducers_[0]->has_slot());
    reducers_[0]->publish(0, kept.back().gradients, mean());
  }
  EXPECT_FALSE(reducers_[0]->has_slot());
  EXPECT_EQ(reducers_[0]->missing_slot(), 1);
  EXPECT_EQ(reducers_[0]->missing_publication(), 1);
}

TEST_P(ReducerTest, RanksThatReduceDifferentUnitsAreNamed) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<Rank1> kept;
  for (int r = 0; r < world_; ++r) {
    kept.push_back(bring(r, r == 1 ? 1 : 0, 0));
    reducers_[static_cast<std::size_t>(r)]->publish(r == 1 ? 1 : 0, kept.back().gradients, mean());
  }
  const auto served = reducers_[0]->serve();
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().reason(), "Diverged");
  EXPECT_NE(served.error().message().find("rank 1 reduces unit 1"), std::string::npos) << served.error().message();
}

TEST_P(ReducerTest, RanksThatStartOverBelongTogetherAgainHoweverFarEachHadCome) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  // Rank 0 has published twice, rank 1 once, the others not at all. Then each starts over and publishes again.
  std::vector<Rank1> lost, brought;
  for (int n = 0; n < 2; ++n) {
    lost.push_back(bring(0, 0, n));
    reducers_[0]->publish(0, lost.back().gradients, mean());
  }
  lost.push_back(bring(1, 0, 0));
  reducers_[1]->publish(0, lost.back().gradients, mean());
  const auto before = lost[0].own;
  brought.reserve(2 * static_cast<std::size_t>(world_));
  for (int n = 0; n < 2; ++n) {
    for (int r = 0; r < world_; ++r) {
      if (n == 0) reducers_[static_cast<std::size_t>(r)]->start_over();
    }
    for (int r = 0; r < world_; ++r) {
      auto& reducer = *reducers_[static_cast<std::size_t>(r)];
      brought.push_back(bring(r, 1, 5 + n));
      ASSERT_TRUE(reducer.has_slot());
      reducer.publish(1, brought.back().gradients, mean());
      if (n == 0) continue;
      while (reducer.num_pending() > 1) ASSERT_TRUE(reducer.serve());
    }
  }
  for (int r = 0; r < world_; ++r) {
    auto& reducer = *reducers_[static_cast<std::size_t>(r)];
    while (reducer.num_pending() > 0) ASSERT_TRUE(reducer.serve().value());
    EXPECT_EQ(reducer.overtaken_by(), -1);
    const auto finished = reducer.take_reduced();
    ASSERT_EQ(finished.size(), 2u);
    for (int n = 0; n < 2; ++n) expect_owned(r, 1, brought[static_cast<std::size_t>(n * world_ + r)], 5 + n, false);
  }
  EXPECT_EQ(lost[0].own, before);  // after start_over no rank writes to its old gradients
}

TEST_P(ReducerTest, ARankThatHasNotStartedOverDetectsTheNextAttempt) {
  if (world_ < 2) GTEST_SKIP() << "needs two ranks";
  std::vector<Rank1> kept;
  kept.push_back(bring(1, 0, 0));
  reducers_[1]->publish(0, kept.back().gradients, mean());
  reducers_[0]->start_over();
  for (int n = 1; n < 5; ++n) {  // more rounds than a rank has slots
    ASSERT_TRUE(reducers_[1]->serve().value());
    EXPECT_EQ(reducers_[1]->num_pending(), 0u);
    EXPECT_EQ(reducers_[1]->overtaken_by(), 0);
    if (world_ > 2 && n == kSlots) break;  // the third rank does not serve, so no slot gets free
    ASSERT_TRUE(reducers_[1]->has_slot());
    kept.push_back(bring(1, 0, n));
    reducers_[1]->publish(0, kept.back().gradients, mean());
  }
  EXPECT_TRUE(reducers_[1]->take_reduced().empty());
  reducers_[1]->start_over();
  EXPECT_EQ(reducers_[1]->overtaken_by(), -1);
}

TEST_P(ReducerTest, TheNextAttemptDoesNotOverwriteUnreadGradients) {
  if (world_ < 3) GTEST_SKIP() << "needs a rank between the one that starts over and the one that sums at once";
  std::vector<Rank1> kept;
  for (int r = 0; r < world_; ++r) {
    kept.push_back(bring(r, 0, 0));
    reducers_[static_cast<std::size_t>(r)]->publish(0, kept.back().gradients, mean());  // the last rank sums at once
  }
  reducers_[0]->start_over();
  EXPECT_FALSE(reducers_[0]->has_slot());
  EXPECT_EQ(reducers_[0]->missing_slot(), 1);
  for (int r = 1; r + 1 < world_; ++r) ASSERT_TRUE(reducers_[static_cast<std::size_t>(r)]->serve().value());
  EXPECT_TRUE(reducers_[0]->has_slot());
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, ReducerTest, testing::Values(1, 2, 3, 4, 8));

// Two replicas of two shards. Gradients travel in bf16 from bf16 or fp32; shards are fp32 and sharded on the second dim.
class ReplicaReducerTest : public testing::Test {
 protected:
  static constexpr int kWorld = 4, kColumns = 5, kRows = 3;

  void SetUp() override {
    layout_ = Layout::make({{"w", {kRows, kColumns}, DType::kFloat32, true, 1, DType::kBFloat16, DType::kFloat32}}).value();
    const auto zeroed = [this](std::size_t bytes) {
      memories_.push_back(runtime::make_memory("m", bytes).value());
      mappings_.push_back(runtime::map(memories_.back(), bytes, runtime::Access::kReadWrite).value());
      return mappings_.back().data();
    };
    const Grid grid(kWorld, 2);
    const std::vector<const Layout*> layouts{&*layout_};
    control_ = std::make_unique<Control>(zeroed(Control::bytes(kWorld, 0)), kWorld, 0);
    slots_ = std::make_unique<Slots>(zeroed(Slots::bytes(kWorld, 0, layouts, 1)), kWorld, 0, layouts, 1);
    for (int r = 0; r < kWorld; ++r) reducers_.push_back(std::make_unique<Reducer>(*control_, r, grid, layouts, *slots_, nullptr));
    for (auto& own : own_) own.assign(kRows * 3, -7);
    for (auto& partial : partial_) partial.assign(kRows * 3, 0);
  }

  // Integers below 256 are exact in bf16.
  static float value(int rank, int round, int row, int column) {
    return static_cast<float>(1 + rank * 40 + round * 20 + row * kColumns + column);
  }

  // The n-th publication of every rank; ranks in `absent` have no gradient.
  void reduce_round(int round, bool everywhere, bool has_partial, std::vector<int> absent = {}) {
    for (int r = 0; r < kWorld; ++r) {
      std::vector<std::uint16_t> whole;
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < kColumns; ++j) {
          const float v = value(r, round, i, j);
          std::uint32_t bits;
          std::memcpy(&bits, &v, 4);
          whole.push_back(static_cast<std::uint16_t>(bits >> 16));
        }
      }
      Reducer::Gradient g;
      const bool here = std::find(absent.begin(), absent.end(), r) == absent.end();
      g.whole = here ? reinterpret_cast<const std::byte*>(whole.data()) : nullptr;
      g.dtype = DType::kBFloat16;
      const auto i = static_cast<std::size_t>(r);
      g.own = reinterpret_cast<std::byte*>(own_[i].data());
      g.partial = reinterpret_cast<std::byte*>(partial_[i].data());
      g.has_partial = has_partial;
      reducers_[i]->publish(0, std::vector{g}, {0.25, everywhere});
    }
    for (const auto& r : reducers_) ASSERT_TRUE(r->serve());
    for (const auto& r : reducers_) ASSERT_EQ(r->num_pending(), 0u);
  }

  void expect_sums(const std::vector<std::pair<int, std::vector<int>>>& rounds_of_ranks) {
    for (int r = 0; r < kWorld; ++r) {
      const int first = r % 2 == 0 ? 0 : 3, count = r % 2 == 0 ? 3 : 2;
      for (int i = 0; i < kRows; ++i) {
        for (int j = 0; j < count; ++j) {
          float sum = 0;
          for (const auto& [round, ranks] : rounds_of_ranks) {
            for (const int other : ranks) sum += value(other, round, i, first + j);
          }
          ASSERT_EQ(own_[static_cast<std::size_t>(r)][static_cast<std::size_t>(i * count + j)], sum / 4) << r << " " << i << " " << j;
        }
      }
    }
  }

  std::optional<Layout> layout_;
  std::vector<Fd> memories_;
  std::vector<runtime::Mapping> mappings_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Slots> slots_;
  std::vector<std::unique_ptr<Reducer>> reducers_;
  std::vector<float> own_[kWorld], partial_[kWorld];
};

TEST_F(ReplicaReducerTest, EveryReplicaGetsTheMeanOverAll) {
  reduce_round(0, true, false);
  expect_sums({{0, {0, 1, 2, 3}}});
}

TEST_F(ReplicaReducerTest, GradientsReducedWithinReplicasJoinTheNextFullReduction) {
  reduce_round(0, false, false);
  for (const auto& own : own_) EXPECT_EQ(own[0], -7);
  reduce_round(1, false, true);
  reduce_round(2, true, true);
  expect_sums({{0, {0, 1, 2, 3}}, {1, {0, 1, 2, 3}}, {2, {0, 1, 2, 3}}});
}

TEST_F(ReplicaReducerTest, APartialSumCountsWhereThereIsNoGradientAnyMore) {
  reduce_round(0, false, false);
  reduce_round(1, true, true, {0, 1, 2, 3});
  expect_sums({{0, {0, 1, 2, 3}}});
}

TEST_F(ReplicaReducerTest, RanksThatReduceOverDifferentRanksGetAnError) {
  const std::vector<float> whole(kRows * kColumns, 1);
  for (int r = 0; r < kWorld; ++r) {
    Reducer::Gradient g;
    g.whole = reinterpret_cast<const std::byte*>(whole.data());
    g.own = reinterpret_cast<std::byte*>(own_[r].data());
    g.partial = reinterpret_cast<std::byte*>(partial_[r].data());
    reducers_[static_cast<std::size_t>(r)]->publish(0, std::vector{g}, {0.25, r != 2});
  }
  EXPECT_EQ(reducers_[0]->serve().error().reason(), "Diverged");
}

}  // namespace
}  // namespace shoal::fsdp
