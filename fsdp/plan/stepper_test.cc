#include "fsdp/plan/stepper.h"

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using namespace std::chrono_literals;

class HandClock final : public runtime::Clock {
 public:
  runtime::TimePoint now() const override { return now_; }
  std::int64_t unix_millis() const override { return 0; }
  runtime::Timer after(runtime::Duration, std::function<void()>) override { return {}; }
  runtime::TimePoint now_{};
};

class StepperTest : public testing::Test {
 protected:
  // A training step of a root with one block.
  void step(bool skip_block = false) {
    stepper_.begin_step();
    at(false, true, 0);
    if (!skip_block) {
      at(false, true, 1);
      at(false, false, 1);
    }
    at(false, false, 0);
    at(true, true, 0);
    if (!skip_block) {
      at(true, true, 1);
      at(true, false, 1);
    }
    at(true, false, 0);
    run(Op::kOptimizerUpdate, -1, false);
  }
  void at(bool backward, bool begin, int unit) {
    run(begin ? Op::kUnshard : backward ? Op::kReduceScatter : Op::kReshard, unit, backward);
    stepper_.passed({backward, begin, unit});
    clock_.now_ += 100us;
  }
  void run(Op op, int unit, bool backward) {
    const auto start = clock_.now_;
    clock_.now_ += 10us;
    stepper_.ran(op, unit, backward, start, clock_.now_);
  }
  HandClock clock_;
  Stepper stepper_{{"", "block"}, {}, clock_};
};

TEST_F(StepperTest, TheFirstStepIsThePlanAndLaterOnesMeasureIt) {
  step();
  stepper_.end_step();
  ASSERT_NE(stepper_.plan(), nullptr);
  EXPECT_TRUE(stepper_.measured().empty());
  step();
  stepper_.end_step();
  EXPECT_EQ(stepper_.detours(), 0u);
  ASSERT_EQ(stepper_.measured().size(), stepper_.plan()->graph().nodes().size());
  for (const auto& n : stepper_.plan()->graph().nodes())
    EXPECT_TRUE(stepper_.measured()[static_cast<std::size_t>(n.id)].seen()) << stepper_.plan()->graph().label(n);
  EXPECT_EQ(stepper_.planned().size(), stepper_.measured().size());
  const auto [from, until] = stepper_.measured_between();
  EXPECT_EQ(until, clock_.now_);
  EXPECT_GT(from, until - 1s);
  EXPECT_LT(from, until);
}

TEST_F(StepperTest, AStepWithAnotherOrderIsTheNextPlan) {
  step();
  step();
  const auto schedule = stepper_.schedule();
  step(true);
  EXPECT_EQ(stepper_.schedule(), schedule);
  step(true);
  EXPECT_EQ(stepper_.detours(), 1u);
  EXPECT_EQ(stepper_.schedule()->boundaries.size(), 4u);
  stepper_.end_step();
  EXPECT_EQ(stepper_.detours(), 1u);
}

TEST_F(StepperTest, OtherOptionsAreAnotherPlanOfTheNextStep) {
  const auto order = [&] {
    step();
    step();
    std::string out;
    for (const auto& n : stepper_.plan()->graph().nodes()) out += stepper_.plan()->graph().label(n) + " ";
    return out;
  };
  const std::string before = order();
  PlanOptions options;
  options.prefetch.depth = 0;
  stepper_.replan(options);
  EXPECT_EQ(stepper_.plan(), nullptr);
  EXPECT_NE(order(), before);
  EXPECT_EQ(stepper_.detours(), 0u);
}

}  // namespace
}  // namespace shoal::fsdp
