#include "runtime/transport/shm/ledger.h"

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;
using Circle = std::vector<int>;

Standing waits(int whom, std::uint64_t beat, std::uint64_t wait_number = 1) { return {wait_number, beat, whom}; }

TEST(WaitingCircle, IsOfRanksThatWaitForEachOther) {
  const std::vector<Standing> before{waits(1, 0), waits(2, 0), waits(1, 0)}, now{waits(1, 2), waits(2, 2), waits(1, 2)};
  EXPECT_EQ(waiting_circle(before, now, 0), (Circle{1, 2}));
}

TEST(WaitingCircle, IsNoneWhileSomebodyIsElsewhereOrHasNotLookedAgainOrHasMoved) {
  const std::vector<Standing> before{waits(1, 0), waits(0, 0)};
  EXPECT_EQ(waiting_circle(before, std::vector{waits(1, 2), waits(0, 2)}, 0).size(), 2u);
  EXPECT_TRUE(waiting_circle(before, std::vector{waits(1, 2), Standing{}}, 0).empty());      // the other rank does not wait
  EXPECT_TRUE(waiting_circle(before, std::vector{waits(1, 2), waits(0, 1)}, 0).empty());     // the other rank has checked only once since
  EXPECT_TRUE(waiting_circle(before, std::vector{waits(1, 2), waits(0, 2, 7)}, 0).empty());  // the other rank is in a later wait
  EXPECT_TRUE(waiting_circle(before, std::vector{waits(1, 2), waits(-1, 2)}, 0).empty());    // the other rank waits for an unknown rank
}

class LedgerTest : public testing::Test {
 protected:
  static constexpr int kWorld = 3;
  const std::size_t bytes_ = MembershipPage::kBytes + Ledger::bytes(kWorld);
  const Fd fd_ = make_memory("ledger", bytes_).value();
  const Mapping mapping_ = map(fd_, bytes_, Access::kReadWrite).value();
  Ledger of(int rank) { return {mapping_.data() + MembershipPage::kBytes, MembershipPage(mapping_.data()), rank, kWorld}; }
};

TEST_F(LedgerTest, SaysWhereARankIs) {
  Ledger one = of(1), two = of(2);
  EXPECT_EQ(one.describe(2), "rank 2 has called no collective yet");
  two.enter({5, Collective::kAllReduce, DType::kBFloat16, ReduceOp::kMax, -1, 4096, 0, 3, "clip"});
  EXPECT_EQ(one.describe(2), "rank 2 last came to all_reduce 5 (max of 4096 bytes of bfloat16) 'clip', step 3");
  two.block(0, "send to rank 0");
  EXPECT_EQ(one.describe(2), "rank 2 waits for rank 0 in send to rank 0");
  two.unblock();
  two.leave();
  EXPECT_TRUE(one.has_left(2));
  EXPECT_NE(one.describe(2).find("has left"), std::string::npos);
}

TEST_F(LedgerTest, KeepsTheLastEntries) {
  Ledger one = of(1);
  for (std::uint64_t i = 1; i <= 6; ++i)
    one.enter({i, Collective::kBarrier, DType::kUInt8, ReduceOp::kSum, -1, 0, 0, i, std::string(100, 'x')});
  EXPECT_FALSE(of(0).entry(1, 2));
  EXPECT_FALSE(of(0).entry(1, 7));
  ASSERT_TRUE(of(0).entry(1, 6));
  EXPECT_EQ(of(0).entry(1, 6)->step, 6u);
  EXPECT_EQ(of(0).entry(1, 6)->label.size(), Ledger::kLabelBytes - 1);
}

TEST_F(LedgerTest, LabelsMayDifferSizesMayNot) {
  const Entry a{1, Collective::kAllReduce, DType::kFloat32, ReduceOp::kSum, -1, 8, 0, 1, "a"};
  Entry b = a;
  b.label = "b";
  b.step = 9;
  EXPECT_TRUE(agree(a, b));
  b.bytes = 16;
  EXPECT_FALSE(agree(a, b));
  b = a;
  b.op = ReduceOp::kAvg;
  EXPECT_FALSE(agree(a, b));
}

TEST_F(LedgerTest, ACircleIsAnErrorOnceItHasStoodStill) {
  Ledger zero = of(0), one = of(1);
  const TimePoint start{};
  for (int i = 0; i < 4; ++i) {
    zero.block(1, "recv from rank 1 'a'");
    one.block(0, "all_reduce 7 'b'");
    ASSERT_TRUE(zero.check_circle(start + i * 300ms)) << i;
  }
  const auto proven = zero.check_circle(start + 1200ms);
  ASSERT_FALSE(proven);
  EXPECT_EQ(proven.error().reason(), "Diverged");
  EXPECT_EQ(proven.error().message(),
            "the ranks wait for each other: rank 0 waits for rank 1 in recv from rank 1 'a'; rank 1 waits for rank 0 in all_reduce 7 'b'");
}

TEST_F(LedgerTest, ARankThatIsStoppedProvesNothing) {
  Ledger zero = of(0), one = of(1);
  one.block(0, "all_reduce 7");
  for (int i = 0; i < 50; ++i) {
    zero.block(1, "recv from rank 1");
    ASSERT_TRUE(zero.check_circle(TimePoint{} + i * 300ms));
  }
}

TEST_F(LedgerTest, TheFirstCauseCounts) {
  EXPECT_FALSE(of(2).failure());
  of(0).fail(unavailable("first").with_reason("ActorDied").with_hint("do"));
  of(1).fail(internal("second"));
  const auto failure = of(2).failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->to_string(), unavailable("first").with_reason("ActorDied").with_hint("do").to_string());
}

}  // namespace
}  // namespace shoal::runtime
