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
  // A training step of a root with one block; the program asks the plan at each hook.
  void step(bool skip_block = false) {
    stepper_.begin_step();
    asked_.clear();
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
    const auto planned = stepper_.boundary({backward, begin, unit});
    asked_.insert(asked_.end(), planned.begin(), planned.end());
    if (stepper_.following()) {
      for (const auto id : planned) run(node(id).op, node(id).unit, node(id).backward);
    } else {
      run(begin ? Op::kUnshard : backward ? Op::kReduceScatter : Op::kReshard, unit, backward);
    }
    clock_.now_ += 100us;
  }
  void run(Op op, int unit, bool backward) {
    const auto start = clock_.now_;
    clock_.now_ += 10us;
    stepper_.ran(op, unit, backward, start, clock_.now_);
  }
  const Node& node(std::int32_t id) { return stepper_.plan()->graph().nodes()[static_cast<std::size_t>(id)]; }

  HandClock clock_;
  Stepper stepper_{{"", "block"}, {}, clock_};
  std::vector<std::int32_t> asked_;
};

TEST_F(StepperTest, TheFirstStepIsTracedAndTheSecondFollowsIt) {
  step();
  EXPECT_FALSE(stepper_.following());
  EXPECT_TRUE(asked_.empty());
  step();
  EXPECT_TRUE(stepper_.following());
  EXPECT_FALSE(asked_.empty());
  step();
  EXPECT_EQ(stepper_.detours(), 0u);
  ASSERT_EQ(stepper_.measured().size(), stepper_.plan()->graph().nodes().size());
  for (const auto& n : stepper_.plan()->graph().nodes())
    EXPECT_TRUE(stepper_.measured()[static_cast<std::size_t>(n.id)].seen()) << stepper_.plan()->graph().label(n);
  EXPECT_EQ(stepper_.planned().size(), stepper_.measured().size());
}

TEST_F(StepperTest, AStepWithAnotherOrderIsTracedAgain) {
  step();
  step();
  step(true);
  EXPECT_FALSE(stepper_.following());
  step(true);
  EXPECT_EQ(stepper_.detours(), 1u);
  EXPECT_TRUE(stepper_.following());
}

TEST_F(StepperTest, OtherOptionsAreAnotherPlanOfTheNextStep) {
  const auto order = [&] {
    step();
    step();
    EXPECT_TRUE(stepper_.following());
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
