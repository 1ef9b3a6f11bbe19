#include "fsdp/step/transfers.h"

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using Steps = Transfers::Steps;
constexpr auto kFinish = Transfers::Step::Kind::kFinish;
constexpr auto kReduceReplicas = Transfers::Step::Kind::kReduceReplicas;

class TransfersTest : public testing::Test {
 protected:
  // A batch of the unit's groups, whose collectives begin.
  void add(int unit, int num_groups, bool replicated = false) {
    transfers_.begin_batch();
    for (int group = 0; group < num_groups; ++group) {
      transfers_.add(unit, group, replicated);
      transfers_.begun(unit, group);
    }
  }
  Transfers transfers_;
};

TEST_F(TransfersTest, TheOldestBatchEndsFirstAndAsAWhole) {
  add(2, 2);
  add(1, 1);
  EXPECT_EQ(transfers_.advance(2), Steps());
  EXPECT_EQ(transfers_.advance(1), (Steps{{kFinish, 2, 0}, {kFinish, 2, 1}}));
  EXPECT_EQ(transfers_.advance(1), Steps());
  EXPECT_EQ(transfers_.finish(), (Steps{{kFinish, 1, 0}}));
  EXPECT_EQ(transfers_.finish(), Steps());
}

TEST_F(TransfersTest, AUnitThatIsReducedTwiceHasTwoBatches) {
  add(1, 1);
  add(1, 1);
  EXPECT_EQ(transfers_.advance(1), (Steps{{kFinish, 1, 0}}));
  EXPECT_EQ(transfers_.finish(), (Steps{{kFinish, 1, 0}}));
}

TEST_F(TransfersTest, AReductionAmongReplicasHoldsNoInputsAndEndsAtTheNextCall) {
  add(2, 1, /*replicated=*/true);
  add(1, 1, /*replicated=*/true);
  EXPECT_EQ(transfers_.advance(1), (Steps{{kReduceReplicas, 2, 0}}));
  EXPECT_EQ(transfers_.advance(1), (Steps{{kFinish, 2, 0}}));
  add(0, 1);
  EXPECT_EQ(transfers_.finish(), (Steps{{kReduceReplicas, 1, 0}, {kFinish, 0, 0}, {kFinish, 1, 0}}));
}

TEST_F(TransfersTest, AnErrorDropsOnlyThoseThatHaveNotBegun) {
  add(2, 1);
  transfers_.begin_batch();
  transfers_.add(1, 0, false);
  transfers_.drop_added();
  EXPECT_EQ(transfers_.finish(), (Steps{{kFinish, 2, 0}}));
  transfers_.add(0, 0, true);
  transfers_.clear();
  EXPECT_EQ(transfers_.finish(), Steps());
}

}  // namespace
}  // namespace shoal::fsdp
