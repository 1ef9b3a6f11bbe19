#include "actors/session/tasks/task_pool_fixture.h"

namespace shoal::actors {
namespace {

class NotedTaskPoolTest : public TaskPoolTest {
 protected:
  NotedTaskPoolTest() {
    pool_.note_in(book_, WorkerId{9}, next_);
    pass(1s);
  }
  std::vector<TaskReport> over() const {
    std::vector<TaskReport> out;
    book_.report_over(out, 100);
    return out;
  }
  std::uint64_t next_ = std::uint64_t{1} << kPoolTaskBits;
  CallBook book_{world_.clock()};
};

TEST_F(NotedTaskPoolTest, EachAttemptIsNoted) {
  auto t = task("a");
  t.retries = 1;
  const auto a = pool_.submit(std::move(t));
  worker(kA);
  pass(1s);
  dies(kA);
  worker(kB);
  pass(3s);
  returns("a");
  EXPECT_EQ(outcome(a), "<a>");
  const auto reported = over();
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_EQ(reported[0].number, std::uint64_t{1} << kPoolTaskBits);
  EXPECT_EQ(reported[0].error, "WORKER_DIED");
  EXPECT_EQ(reported[0].actor, kA);
  EXPECT_EQ(reported[0].end_unix_us - reported[0].start_unix_us, 1'000'000);
  EXPECT_EQ(reported[1].number, task_number(reported[0].number, 1));
  EXPECT_EQ(reported[1].state, TaskState::kFinished);
  EXPECT_EQ(reported[1].actor, kB);
  EXPECT_EQ(reported[1].end_unix_us - reported[1].start_unix_us, 3'000'000);
}

TEST_F(NotedTaskPoolTest, AnUnbegunTaskIsNoAttempt) {
  submit("a");
  worker(kA);
  pass(500us);
  returns("a");  // from now on the duration of "a" is known
  const auto b = submit("b"), c = submit("c");
  EXPECT_EQ(running(), "1:b 1:c");
  dies(kA);
  EXPECT_EQ(outcome(b), "WorkerCrashed");
  pool_.cancel(c, {});
  const auto reported = over();
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_EQ(reported[0].number >> 56, 0u);
  EXPECT_EQ(reported[0].error, "TASK_CANCELLED");
  EXPECT_EQ(reported[0].start_unix_us, 0);
}

TEST_F(NotedTaskPoolTest, ATaskBeginsWhenTheOneBeforeItIsDone) {
  submit("a");
  worker(kA);
  pass(500us);
  returns("a");
  submit("b"), submit("c");
  EXPECT_EQ(running(), "1:b 1:c");
  pass(500us);
  returns("b");
  pass(500us);
  returns("c");
  const auto reported = over();
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_EQ(reported[0].start_unix_us, reported[1].end_unix_us);
}

TEST_F(NotedTaskPoolTest, SomeOfManyWaitingTasksAreReportedAndTheOthersCounted) {
  for (const char* what : {"a", "b", "c"}) submit(what);
  std::vector<TaskReport> out;
  EXPECT_EQ(pool_.report(out, 2), 1u);
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(pool_.report(out, 2), 3u);
}

}  // namespace
}  // namespace shoal::actors
