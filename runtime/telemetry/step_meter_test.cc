#include "runtime/telemetry/step_meter.h"

#include <string>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

constexpr std::int64_t kMs = 1'000'000;

std::int64_t ms(const StepMeter::Step& step, Activity activity) { return step.row.in(activity) / 1000; }

// Calls with times in milliseconds.
class StepMeterTest : public testing::Test {
 protected:
  void begin(Activity activity, int key, std::int64_t t) {
    meter_.begin(activity, key, t * kMs);
    take();
  }
  void end(Activity activity, int key, std::int64_t t) { meter_.end(activity, key, t * kMs); }
  void wait(Activity activity, int unit, std::int64_t from, std::int64_t to) {
    meter_.wait_begin(activity, unit, from * kMs);
    meter_.wait_end(to * kMs);
  }
  void optimizer(int key, std::int64_t from, std::int64_t to) {
    begin(Activity::kOptimizer, key, from);
    meter_.end_optimizer(key, to * kMs, to * kMs / 2);
    take();
  }
  void batch(std::int64_t t) {
    meter_.begin_batch(t * kMs);
    take();
  }
  void take() {
    if (auto step = meter_.take()) steps_.push_back(std::move(*step));
  }
  const std::vector<StepMeter::Step>& all() {
    if (auto step = meter_.take_idle(true)) steps_.push_back(std::move(*step));
    return steps_;
  }
  // A step of 100 ms that begins at `t`.
  void step(std::int64_t t) {
    begin(Activity::kLoader, -1, t);
    end(Activity::kLoader, -1, t + 5);
    begin(Activity::kForward, 0, t + 6);
    wait(Activity::kGather, 1, t + 10, t + 20);
    begin(Activity::kForward, 1, t + 20);
    end(Activity::kForward, 1, t + 30);
    end(Activity::kForward, 0, t + 38);
    begin(Activity::kBackward, -1, t + 40);
    begin(Activity::kBackward, 1, t + 41);
    end(Activity::kBackward, 1, t + 60);
    wait(Activity::kReduce, -1, t + 60, t + 70);
    end(Activity::kBackward, -1, t + 80);
    optimizer(1, t + 85, t + 100);
  }
  StepMeter meter_{0};
  std::vector<StepMeter::Step> steps_;
};

TEST_F(StepMeterTest, EachMomentOfAStepCountsOnce) {
  for (const int t : {0, 100, 200}) step(t);
  ASSERT_EQ(all().size(), 3u);
  for (const auto& s : all()) {
    EXPECT_EQ(ms(s, Activity::kLoader), 5);
    EXPECT_EQ(ms(s, Activity::kForward), 22);
    EXPECT_EQ(ms(s, Activity::kGather), 10);
    EXPECT_EQ(ms(s, Activity::kBackward), 30);
    EXPECT_EQ(ms(s, Activity::kReduce), 10);
    EXPECT_EQ(ms(s, Activity::kOptimizer), 15);
    EXPECT_EQ(ms(s, Activity::kElsewhere), 1 + 2 + 5);
    EXPECT_EQ(s.row.total_us, 100'000);
  }
  EXPECT_EQ(all()[1].row.cpu_us, 50'000);
}

TEST_F(StepMeterTest, AStepEndsWithItsLastOptimizer) {
  begin(Activity::kForward, 0, 0);
  end(Activity::kForward, 0, 10);
  optimizer(1, 10, 20);
  optimizer(2, 30, 40);
  EXPECT_FALSE(meter_.take());  // a third optimizer may follow
  begin(Activity::kLoader, -1, 50);
  ASSERT_EQ(steps_.size(), 1u);
  EXPECT_EQ(steps_[0].row.total_us, 40'000);
  EXPECT_EQ(ms(steps_[0], Activity::kOptimizer), 20);
  EXPECT_EQ(ms(steps_[0], Activity::kElsewhere), 10);
}

TEST_F(StepMeterTest, AClosureRunsInsideOfItsOptimizer) {
  for (const int t : {0, 100}) {
    begin(Activity::kOptimizer, 1, t);
    for (const int inner : {t + 10, t + 40}) {
      begin(Activity::kForward, 0, inner);
      end(Activity::kForward, 0, inner + 10);
      begin(Activity::kBackward, -1, inner + 10);
      end(Activity::kBackward, -1, inner + 20);
    }
    meter_.end_optimizer(1, (t + 100) * kMs, {});
    take();
  }
  ASSERT_EQ(all().size(), 2u);
  for (const auto& s : all()) {
    EXPECT_EQ(ms(s, Activity::kForward), 20);
    EXPECT_EQ(ms(s, Activity::kBackward), 20);
    EXPECT_EQ(ms(s, Activity::kOptimizer), 60);
  }
}

TEST_F(StepMeterTest, ALoopThatReportsItsBatchesHasAStepPerBatch) {
  batch(0);
  for (const int key : {1, 2, 1}) {  // in the order of a GAN's optimizers
    begin(Activity::kForward, 0, 10);
    end(Activity::kForward, 0, 10);
    optimizer(key, 10, 20);
  }
  batch(30);
  ASSERT_EQ(steps_.size(), 1u);
  begin(Activity::kForward, 0, 40);  // its gradients accumulate
  end(Activity::kForward, 0, 60);
  batch(70);
  ASSERT_EQ(steps_.size(), 1u);
  optimizer(1, 80, 90);
  batch(100);
  ASSERT_EQ(steps_.size(), 2u);
  EXPECT_EQ(ms(steps_[1], Activity::kForward), 20);
  EXPECT_EQ(steps_[1].row.total_us, 70'000);
}

TEST_F(StepMeterTest, AnIdleProgramEndsItsStepButNotFromWithinAnActivity) {
  optimizer(1, 0, 10);
  begin(Activity::kOptimizer, 2, 20);
  EXPECT_FALSE(meter_.take_idle(false));
  meter_.end_optimizer(2, 30 * kMs, {});
  meter_.wait_begin(Activity::kWindow, -1, 40 * kMs);  // a third optimizer waits for the window
  EXPECT_FALSE(meter_.take_idle(false));
  meter_.wait_end(50 * kMs);
  EXPECT_TRUE(meter_.take_idle(false));
  EXPECT_FALSE(meter_.take_idle(true));
}

TEST_F(StepMeterTest, AnEvaluationInsideOfAForwardLeavesItAsItWas) {
  begin(Activity::kForward, 0, 0);
  begin(Activity::kForward, 7, 10);  // a teacher model
  end(Activity::kForward, 7, 30);
  EXPECT_EQ(meter_.activity(), Activity::kForward);
  EXPECT_EQ(meter_.unit(), 0);
  end(Activity::kForward, 0, 50);
  EXPECT_EQ(meter_.activity(), Activity::kElsewhere);
  optimizer(1, 60, 70);
  EXPECT_EQ(ms(all()[0], Activity::kForward), 50);
}

TEST_F(StepMeterTest, AnActivityInsideOfAWaitIsNoWaitAfterIt) {
  meter_.wait_begin(Activity::kSync, -1, 0);
  begin(Activity::kSave, -1, 10);
  end(Activity::kSave, -1, 20);
  meter_.wait_begin(Activity::kReduce, 2, 20 * kMs);
  meter_.wait_end(30 * kMs);
  EXPECT_EQ(meter_.activity(), Activity::kSync);
  meter_.wait_end(40 * kMs);
  EXPECT_EQ(meter_.activity(), Activity::kElsewhere);
  optimizer(1, 50, 60);
  EXPECT_EQ(ms(all()[0], Activity::kSync), 40);
}

TEST_F(StepMeterTest, SpansShowUnitsAndWaits) {
  step(0);
  std::vector<std::string> seen;
  for (const auto& s : all()[0].spans)
    seen.push_back(std::string(key_of(s.activity)) + " " + std::to_string(s.unit) + " " + std::to_string(s.from_us / 1000) + " " +
                   std::to_string(s.length_us / 1000));
  EXPECT_EQ(seen, (std::vector<std::string>{"load -1 0 5", "gather 1 10 10", "fwd 1 20 10", "fwd 0 6 32", "bwd 1 41 19", "reduce -1 60 10",
                                            "bwd -1 40 40", "opt -1 85 15"}));
  meter_.set_detailed(false);
  step(100);
  EXPECT_TRUE(meter_.take_idle(true)->spans.empty());
}

TEST_F(StepMeterTest, TheOuterActivityEndsWhatAnExceptionHasLeftOpen) {
  begin(Activity::kForward, 0, 0);
  begin(Activity::kForward, 1, 1);
  end(Activity::kForward, 0, 5);
  EXPECT_EQ(meter_.activity(), Activity::kElsewhere);
  end(Activity::kForward, 1, 7);      // ended already
  begin(Activity::kOptimizer, 1, 8);  // this optimizer's step raises
  optimizer(1, 20, 30);
  EXPECT_EQ(meter_.activity(), Activity::kElsewhere);
  EXPECT_EQ(all()[0].spans.size(), 3u);
  begin(Activity::kBackward, -1, 40);
  meter_.unwind(50 * kMs);
  EXPECT_EQ(meter_.activity(), Activity::kElsewhere);
}

TEST_F(StepMeterTest, ALoopWithoutAnOptimizerTakesBoundedMemory) {
  for (int i = 0; i < 100'000; ++i) {
    begin(Activity::kForward, i, i);
    wait(Activity::kGather, i, i, i);
  }
  EXPECT_FALSE(meter_.ended());
}

}  // namespace
}  // namespace shoal::runtime
