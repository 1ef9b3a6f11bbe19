#include "runtime/loop/task_group.h"

#include <string>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

Task<void> sleeper(Clock& clock, int& ended) {
  const auto r = co_await sleep(clock, 1h);
  ++ended;
  co_return r;
}

Task<void> failing(Error error) { co_return fail(std::move(error)); }

Task<void> throwing() {
  throw std::runtime_error("not ours");
  co_return Result<void>();
}

class TaskGroupTest : public testing::Test {
 protected:
  void run_until(const std::function<bool()>& done) {
    const auto end = clock_->now() + 5s;
    while (!done() && clock_->now() < end) loop_.run_one(10ms);
    EXPECT_TRUE(done());
  }
  void drain(TaskGroup& group) {
    bool drained = false;
    group.stop([&] { drained = true; });
    run_until([&] { return drained; });
  }

  Loop loop_;
  std::unique_ptr<Clock> clock_ = make_real_clock(loop_);
  std::string errors_;
  TaskGroup group_{loop_, [this](const std::string& name, const Error& e) { errors_ += name + ": " + e.message() + "; "; }};
};

TEST_F(TaskGroupTest, StopCancelsAndDrains) {
  int ended = 0;
  for (int i = 0; i < 3; ++i) group_.spawn("sleeper", sleeper(*clock_, ended));
  loop_.poll();
  EXPECT_EQ(group_.size(), 3u);
  drain(group_);
  EXPECT_EQ(ended, 3);
  EXPECT_EQ(group_.size(), 0u);
  EXPECT_EQ(errors_, "");  // cancellation by stop() is no failure
}

TEST_F(TaskGroupTest, EveryFailureIsReportedAlsoAForeignException) {
  group_.spawn("a", failing(data_loss("gone")));
  group_.spawn("b", throwing());
  run_until([&] { return group_.size() == 0; });
  EXPECT_EQ(errors_, "a: gone; b: not ours; ");
  drain(group_);
}

TEST_F(TaskGroupTest, ATaskSpawnedAfterStopEndsAtOnce) {
  drain(group_);
  int ended = 0;
  group_.spawn("late", sleeper(*clock_, ended));
  run_until([&] { return group_.size() == 0; });
  EXPECT_EQ(ended, 0);  // never started
  EXPECT_EQ(errors_, "");
}

using TaskGroupDeathTest = TaskGroupTest;
TEST_F(TaskGroupDeathTest, ADestructorWithRunningTasksIsABug) {
  int ended = 0;
  EXPECT_DEATH(
      {
        TaskGroup group(loop_, [](const std::string&, const Error&) {});
        group.spawn("sleeper", sleeper(*clock_, ended));
      },
      "destroyed while tasks run");
}

}  // namespace
}  // namespace shoal::runtime
