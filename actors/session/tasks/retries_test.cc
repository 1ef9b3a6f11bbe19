#include "actors/session/tasks/task_pool_fixture.h"

namespace shoal::actors {
namespace {

class DelayedTaskPoolTest : public TaskPoolTest {
 protected:
  DelayedTaskPoolTest() : TaskPoolTest({.retry_delay = 1s}) {}
  TaskPool::Task mortal(const std::string& what) {
    auto out = task(what);
    out.retries = 1;
    return out;
  }
};

TEST_F(TaskPoolTest, ADeathIsChargedToTheTaskThatRan) {
  worker(kA);
  submit("warm");
  pass(100us);
  returns("warm");
  auto once = task("once"), never = task("never");
  once.retries = 1;
  const auto first = pool_.submit(std::move(once)), second = pool_.submit(std::move(never)), third = submit("third");
  EXPECT_EQ(running(), "1:once 1:never 1:third");
  dies(kA);
  EXPECT_EQ(running(), "");
  worker(kB);
  pass(100us);
  // In their order. "never" has no retry, and is there because it had not begun.
  EXPECT_EQ(running(), "2:once 2:never 2:third");
  dies(kB);
  EXPECT_EQ(outcome(first), "WorkerCrashed");
  EXPECT_EQ(first.peek().error().message(), "the worker that ran once died: was killed (tried 2 times)");
  worker(kA);
  EXPECT_EQ(running(), "1:never 1:third");
  returns("never");
  returns("third");
  EXPECT_EQ(outcome(second), "<never>");
}

TEST_F(DelayedTaskPoolTest, ARetryAfterADeathIsDelayedAndBlocksNoOther) {
  worker(kA);
  const auto first = pool_.submit(mortal("first"));
  pass(500ms);
  dies(kA);
  worker(kB);
  const auto second = submit("second");
  EXPECT_EQ(running(), "2:second");
  returns("second");
  EXPECT_TRUE(pool_.any_open());
  pass(900ms);
  EXPECT_EQ(running(), "");
  pass(200ms);
  EXPECT_EQ(running(), "2:first");
  returns("first");
  EXPECT_EQ(outcome(first), "<first>");
  EXPECT_FALSE(pool_.any_open());
}

TEST_F(DelayedTaskPoolTest, ADelayedTaskThatIsCancelledOrClosedEndsAtOnce) {
  worker(kA);
  worker(kB);
  const auto first = pool_.submit(mortal("first")), second = pool_.submit(mortal("second"));
  dies(kA);
  dies(kB);
  pool_.cancel(first, {});
  EXPECT_EQ(outcome(first), "TaskCancelled");
  pool_.close();
  EXPECT_EQ(second.peek().error().code(), Code::kCancelled);
}

TEST_F(TaskPoolTest, RaisedExceptionsAreJudgedIfRequested) {
  worker(kA);
  auto judged = task("judged");
  judged.judge_raised = true;
  judged.retries = 1;
  const auto result = pool_.submit(std::move(judged)), plain = submit("plain");
  raises("judged");
  EXPECT_EQ(outcome(result), "pending");
  auto wants = pool_.take_wants(1h);
  ASSERT_EQ(wants.raised.size(), 1u);
  EXPECT_EQ(outcome(wants.raised[0].raised), "raised <judged>");
  EXPECT_TRUE(pool_.take_wants(1h).raised.empty());  // each judgement is reported once
  pool_.judged(wants.raised[0].id, true);
  pass(10ms);
  raises("plain");
  EXPECT_EQ(outcome(plain), "raised <plain>");
  raises("judged");
  EXPECT_EQ(outcome(result), "raised <judged>");  // its only retry is used up
}

}  // namespace
}  // namespace shoal::actors
