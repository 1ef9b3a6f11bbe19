#include "runtime/telemetry/step_meter.h"

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

constexpr std::int64_t kMs = 1'000'000;

std::int64_t ms(const StepRow& row, Activity activity) { return row.in(activity) / 1000; }

// A step of 100 ms that begins at `t` ms.
void step(StepMeter& meter, std::int64_t t) {
  meter.go(Activity::kLoader, t * kMs);
  meter.go(Activity::kElsewhere, (t + 5) * kMs);
  meter.unit_begin(Activity::kForward, 0, (t + 6) * kMs);
  meter.wait_begin(Activity::kGather, 1, (t + 10) * kMs);
  meter.wait_end((t + 20) * kMs);
  meter.unit_begin(Activity::kForward, 1, (t + 20) * kMs);
  meter.unit_end(Activity::kForward, 1, (t + 30) * kMs);
  meter.unit_end(Activity::kForward, 0, (t + 40) * kMs);
  meter.unit_begin(Activity::kBackward, 0, (t + 40) * kMs);
  meter.wait_begin(Activity::kReduce, -1, (t + 60) * kMs);
  meter.wait_end((t + 70) * kMs);
  meter.unit_end(Activity::kBackward, 0, (t + 80) * kMs);
  meter.go(Activity::kElsewhere, (t + 80) * kMs);
  meter.go(Activity::kOptimizer, (t + 85) * kMs);
  meter.end_step((t + 100) * kMs, t * kMs);
}

TEST(StepMeterTest, EachMomentOfAStepCountsAtOnePlace) {
  StepMeter meter(0);
  step(meter, 0);
  EXPECT_FALSE(meter.take());  // another optimizer may follow
  step(meter, 100);
  const auto first = meter.take_last();
  ASSERT_TRUE(first);  // complete, and not taken yet
  step(meter, 200);
  const auto done = meter.take_last();
  ASSERT_TRUE(done);
  const auto& row = done->row;
  EXPECT_EQ(ms(row, Activity::kLoader), 5);
  EXPECT_EQ(ms(row, Activity::kForward), 24);
  EXPECT_EQ(ms(row, Activity::kGather), 10);
  EXPECT_EQ(ms(row, Activity::kBackward), 30);
  EXPECT_EQ(ms(row, Activity::kReduce), 10);
  EXPECT_EQ(ms(row, Activity::kOptimizer), 15);
  std::int64_t sum = 0;
  for (int i = 0; i < kNumActivities; ++i) sum += row.in(static_cast<Activity>(i));
  EXPECT_EQ(sum, row.total_us);
}

TEST(StepMeterTest, AStepEndsWithItsLastOptimizer) {
  StepMeter meter(0);
  meter.unit_begin(Activity::kForward, 0, 0);
  meter.unit_end(Activity::kForward, 0, 10 * kMs);
  for (const std::int64_t at : {10, 30}) {
    meter.go(Activity::kOptimizer, at * kMs);
    meter.end_step((at + 10) * kMs, 0);
    EXPECT_FALSE(meter.take());
  }
  meter.go(Activity::kLoader, 50 * kMs);
  const auto done = meter.take();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->row.total_us, 40'000);
  EXPECT_EQ(ms(done->row, Activity::kOptimizer), 20);
  EXPECT_EQ(ms(done->row, Activity::kElsewhere), 10);
  EXPECT_FALSE(meter.take());
}

TEST(StepMeterTest, TimeAfterAStepBelongsToTheNextOne) {
  StepMeter meter(0);
  step(meter, 0);
  meter.go(Activity::kLoader, 150 * kMs);
  ASSERT_TRUE(meter.take());
  step(meter, 160);
  const auto second = meter.take_last();
  ASSERT_TRUE(second);
  EXPECT_EQ(second->row.total_us, 160'000);
  EXPECT_EQ(ms(second->row, Activity::kElsewhere), 50 + 1 + 5);
  EXPECT_EQ(second->row.cpu_us, 160'000);
}

TEST(StepMeterTest, SpansShowUnitsAndWaits) {
  StepMeter meter(0);
  step(meter, 0);
  const auto done = meter.take_last();
  ASSERT_TRUE(done);
  std::vector<std::string> seen;
  for (const auto& s : done->spans)
    seen.push_back(std::string(key_of(s.activity)) + " " + std::to_string(s.unit) + " " + std::to_string(s.from_us / 1000) + " " +
                   std::to_string(s.length_us / 1000));
  EXPECT_EQ(seen, (std::vector<std::string>{"load -1 0 5", "gather 1 10 10", "fwd 1 20 10", "fwd 0 6 34", "reduce -1 60 10", "bwd 0 40 40",
                                            "opt -1 85 15"}));
  meter.set_detailed(false);
  step(meter, 100);
  EXPECT_TRUE(meter.take_last()->spans.empty());
}

TEST(StepMeterTest, UnitsEndWithTheirPass) {
  StepMeter meter(0);
  meter.unit_begin(Activity::kBackward, 0, 0);
  meter.unit_begin(Activity::kBackward, 1, 2 * kMs);
  meter.end_pass(5 * kMs);
  EXPECT_EQ(meter.activity(), Activity::kElsewhere);
  meter.end_step(6 * kMs, 0);
  const auto done = meter.take_last();
  ASSERT_EQ(done->spans.size(), 2u);
  EXPECT_EQ(done->spans[1].length_us, 5000);
}

TEST(StepMeterTest, AnExceptionClosesUnitsAndWaits) {
  StepMeter meter(0);
  meter.unit_begin(Activity::kForward, 0, 0);
  meter.unit_begin(Activity::kForward, 1, 1 * kMs);
  meter.wait_begin(Activity::kGather, 1, 2 * kMs);
  meter.unwind(5 * kMs);
  EXPECT_EQ(meter.activity(), Activity::kElsewhere);
  EXPECT_EQ(meter.unit(), -1);
  meter.wait_end(6 * kMs);  // as the scope does that the exception leaves
  meter.unit_end(Activity::kForward, 1, 7 * kMs);
  meter.end_step(10 * kMs, 0);
  const auto done = meter.take_last();
  EXPECT_EQ(ms(done->row, Activity::kGather), 3);
  EXPECT_EQ(ms(done->row, Activity::kForward), 2);
}

TEST(StepMeterTest, NestedWaitsCountOnce) {
  StepMeter meter(0);
  meter.wait_begin(Activity::kGather, 1, 0);
  meter.wait_begin(Activity::kReduce, 2, 1 * kMs);
  meter.wait_end(2 * kMs);
  EXPECT_EQ(meter.activity(), Activity::kGather);
  meter.wait_end(4 * kMs);
  meter.end_step(4 * kMs, 0);
  EXPECT_EQ(ms(meter.take_last()->row, Activity::kGather), 4);
}

}  // namespace
}  // namespace shoal::runtime
