#include "fsdp/step/executor.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using Kind = Action::Kind;

// Fails at the action `fails_at`, by an error or by an exception as Python's hooks raise.
class Failing final : public Executor {
 public:
  Result<void> run(const Action& a) override {
    if (a.kind == fails_at && throws) throw std::runtime_error("a hook raised");
    if (a.kind == fails_at) return fail(invalid_argument("the executor failed"));
    return {};
  }
  Kind fails_at = Kind::kShow;
  bool throws = false;
};

class PerformTest : public testing::Test {
 protected:
  PerformTest() : machine_({{"", true, std::make_shared<UnitRules>()}}) { machine_.set_groups({{{}}}, 2); }
  void forward_and_backward() {
    executor_.fails_at = Kind::kEndOptimizer;  // no action here is of this kind
    ASSERT_TRUE(perform(machine_, executor_, machine_.forward_begin(0, {.training = true})));
    ASSERT_TRUE(perform(machine_, executor_, machine_.forward_end(0, {.training = true})));
    ASSERT_TRUE(perform(machine_, executor_, machine_.begin_pass()));
    ASSERT_TRUE(perform(machine_, executor_, machine_.backward_begin(0, {1})));
  }
  StepMachine machine_;
  Failing executor_;
};

TEST_F(PerformTest, AnActionThatFailsChangesNothingInTheMachine) {
  executor_.fails_at = Kind::kShow;
  const auto failed = perform(machine_, executor_, machine_.forward_begin(0, {.training = true}));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "the executor failed");
  EXPECT_EQ(machine_.view(0), View::kSharded);
  EXPECT_FALSE(machine_.window_open()) << "kEnter precedes the failed action";
}

TEST_F(PerformTest, APassWhoseEndFailsIsRecoveredFrom) {
  for (const bool throws : {false, true}) {
    forward_and_backward();
    executor_.fails_at = Kind::kFinishPass;
    executor_.throws = throws;
    if (throws) {
      EXPECT_THROW((void)perform(machine_, executor_, machine_.pass_ends(false)), std::runtime_error);
    } else {
      EXPECT_FALSE(perform(machine_, executor_, machine_.pass_ends(false)));
    }
    EXPECT_EQ(machine_.pass(), StepMachine::Pass::kLeft);
    executor_.fails_at = Kind::kEndOptimizer;
    ASSERT_TRUE(perform(machine_, executor_, machine_.recover()));
    EXPECT_EQ(machine_.pass(), StepMachine::Pass::kNone);
    EXPECT_EQ(machine_.phase(0), StepMachine::Phase::kIdle);
    EXPECT_FALSE(machine_.window_open()) << "a reset does not open the window";
  }
}

TEST_F(PerformTest, AnEventThatIsRefusedHasNoActions) {
  machine_.set_finalized_by_hand(true);
  forward_and_backward();
  ASSERT_TRUE(perform(machine_, executor_, machine_.pass_ends(false)));
  const auto refused = perform(machine_, executor_, machine_.open_window("optimizer.step"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(),
            "optimizer.step opens the write window, but the last backward pass is not finalized: its gradients are not complete");
  ASSERT_TRUE(perform(machine_, executor_, machine_.finalize(false)));
  EXPECT_TRUE(machine_.window_open());
}

}  // namespace
}  // namespace shoal::fsdp
