#include "actors/session/references/call_book.h"

#include <gtest/gtest.h>

#include "actors/session/references/actor_host.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;

Call call_of(const std::string& method, std::uint64_t task, const std::string& function = "") {
  Call out;
  out.actor = ActorId{7};
  out.method = method;
  if (!function.empty()) out.function = std::make_shared<const std::string>(function);
  out.task = task;
  return out;
}

class CallBookTest : public testing::Test {
 protected:
  static constexpr WorkerId kCaller{3};

  std::vector<TaskReport> reported() {
    std::vector<TaskReport> out;
    EXPECT_EQ(book_.report_running(out, 10'000), 0u);
    book_.report_over(out, 10'000);
    return out;
  }
  void pass(runtime::Duration time) { world_.run_for(time); }

  runtime::SimWorld world_{runtime::SimWorld::Options()};
  CallBook book_{world_.clock()};
};

TEST_F(CallBookTest, RunningAndFinishedCallsAreReportedWithTheirTimes) {
  pass(1s);
  const auto first = book_.taken(call_of("add", 1), kCaller);
  const auto second = book_.taken(call_of("run", 2, "half"), kCaller);
  pass(2s);
  book_.ended(second, kRaisedFailure);
  const auto tasks = reported();
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].method, "add");
  EXPECT_EQ(tasks[0].state, TaskState::kRunning);
  EXPECT_EQ(tasks[0].number, 1u);
  EXPECT_EQ(tasks[0].caller, kCaller);
  EXPECT_EQ(tasks[0].end_unix_us, 0);
  EXPECT_EQ(tasks[1].function, "half");
  EXPECT_EQ(tasks[1].state, TaskState::kFailed);
  EXPECT_EQ(tasks[1].error, "TASK_EXECUTION_EXCEPTION");
  EXPECT_EQ(tasks[1].end_unix_us - tasks[1].start_unix_us, 2'000'000);
  book_.ended(first);
  EXPECT_EQ(reported()[1].state, TaskState::kFinished);  // behind the one that failed
}

TEST_F(CallBookTest, AHandedOverCallWaitsUntilItBegins) {
  const auto entry = book_.taken(call_of("slow", 1), kCaller, true);
  EXPECT_EQ(reported()[0].state, TaskState::kPendingTurn);
  pass(1s);
  book_.began(entry);
  EXPECT_EQ(reported()[0].state, TaskState::kRunning);
  book_.ended(entry);
  EXPECT_EQ(reported()[0].start_unix_us, reported()[0].end_unix_us);
}

TEST_F(CallBookTest, OnlyTheLastAreKeptNewestFirst) {
  for (std::uint64_t i = 1; i <= CallBook::kMaxEnded + 10; ++i) book_.ended(book_.taken(call_of("add", i), kCaller));
  const auto tasks = reported();
  ASSERT_EQ(tasks.size(), CallBook::kMaxEnded);
  EXPECT_EQ(tasks.front().number, CallBook::kMaxEnded + 10);
  EXPECT_EQ(tasks.back().number, 11u);
}

TEST_F(CallBookTest, CallsThatFailedOutliveManyThatSucceed) {
  pass(1s);
  book_.ended(book_.taken(call_of("fails", 1), kCaller), kRaisedFailure);
  const std::uint64_t of_pool = std::uint64_t{1} << kPoolTaskBits;
  book_.over({of_pool, kCaller, ActorId{7}, book_.name("run", "half"), {}, world_.clock().now(), "WORKER_DIED"});
  for (std::uint64_t i = 2; i <= 2 * CallBook::kMaxEnded; ++i) {
    book_.ended(book_.taken(call_of("add", i), kCaller));
    book_.over({of_pool + i, kCaller, ActorId{7}, book_.name("run", "half"), {}, world_.clock().now(), {}});
  }
  const auto tasks = reported();
  ASSERT_EQ(tasks.size(), 2 * CallBook::kMaxEnded + 2);
  EXPECT_EQ(tasks[0].error, "TASK_EXECUTION_EXCEPTION");
  EXPECT_EQ(tasks[1].error, "WORKER_DIED");
}

TEST_F(CallBookTest, ReportsHaveTheNumberOfEndedCallsThatTheyOmit) {
  std::vector<TaskReport> out;
  EXPECT_EQ(book_.report_over(out, 10'000), 0u);
  for (std::uint64_t i = 1; i <= CallBook::kMaxEnded + 10; ++i) book_.ended(book_.taken(call_of("add", i), kCaller));
  book_.ended(book_.taken(call_of("add", 1), kCaller), kRaisedFailure);
  EXPECT_EQ(book_.report_over(out, 10'000), 10u);
  out.resize(1);
  EXPECT_EQ(book_.report_over(out, 3), CallBook::kMaxEnded + 9);  // `out` has room for two of them
}

TEST_F(CallBookTest, ReportsHaveTheNumberOfOmittedRunningCalls) {
  pass(1s);
  for (std::uint64_t i = 1; i <= 3; ++i) book_.taken(call_of("add", i), kCaller);
  for (std::uint64_t i = 4; i <= 6; ++i) book_.ended(book_.taken(call_of("add", i), kCaller));
  std::vector<TaskReport> out;
  EXPECT_EQ(book_.report_running(out, 2), 1u);
  book_.report_over(out, 4);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[1].state, TaskState::kRunning);
  EXPECT_EQ(out[2].number, 6u);
  EXPECT_EQ(out[3].number, 5u);
}

TEST_F(CallBookTest, FrequentCallsEvictOnlyTheirOwnKind) {
  const std::uint64_t of_pool = std::uint64_t{1} << kPoolTaskBits;
  const auto note = [&](std::uint64_t number, std::string_view failure) {
    pass(1us);
    book_.over({number, kCaller, ActorId{7}, book_.name("run", "half"), {}, world_.clock().now(), failure});
  };
  pass(1s);
  book_.ended(book_.taken(call_of("add", 1), kCaller));
  note(of_pool, {});
  for (std::uint64_t i = 2; i <= CallBook::kMaxEnded + 10; ++i) note(i, "ACTOR_DIED");
  note(of_pool + 1, "WORKER_DIED");
  const auto tasks = reported();
  ASSERT_EQ(tasks.size(), CallBook::kMaxEnded + 3);
  EXPECT_EQ(tasks[0].number, of_pool + 1);
  EXPECT_EQ(tasks[1].number, CallBook::kMaxEnded + 10);
  EXPECT_EQ(tasks[CallBook::kMaxEnded + 1].number, of_pool);
  EXPECT_EQ(tasks[CallBook::kMaxEnded + 2].number, 1u);
}

TEST_F(CallBookTest, ADroppedCallHasFailedAndFreesItsPlace) {
  pass(1s);
  const auto entry = book_.taken(call_of("add", 1), kCaller);
  {
    CallBook::Taken first(book_, entry);
    const CallBook::Taken taken = std::move(first);
    EXPECT_EQ(reported()[0].state, TaskState::kRunning);
  }
  ASSERT_EQ(reported().size(), 1u);
  EXPECT_EQ(reported()[0].error, "INTERNAL");
  EXPECT_EQ(book_.taken(call_of("add", 2), kCaller), entry);
}

TEST_F(CallBookTest, AnEndIsReportedOnce) {
  pass(1s);
  CallBook::Taken taken(book_, book_.taken(call_of("add", 1), kCaller));
  taken.ended();
  taken = CallBook::Taken(book_, book_.taken(call_of("add", 2), kCaller));
  taken.ended("FAILED");
  const auto tasks = reported();
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[1].state, TaskState::kFinished);
}

TEST_F(CallBookTest, NamesAreBounded) {
  pass(1s);
  for (std::size_t i = 0; i < CallBook::kMaxNames + 10; ++i) book_.ended(book_.taken(call_of("m" + std::to_string(i), 1), kCaller));
  EXPECT_EQ(reported().front().method, "");
  book_.ended(book_.taken(call_of("m1", 1), kCaller), "a failure without a name");
  EXPECT_EQ(reported().front().method, "m1");
  EXPECT_EQ(reported().front().state, TaskState::kFailed);
}

TEST_F(CallBookTest, ALongNameIsDroppedAndOthersAreFoundAgain) {
  const std::string longest(CallBook::kMaxNameBytes, 'x');
  for (const auto& method : {std::string("a"), longest, longest + "y", std::string("b"), std::string("a"), longest}) {
    book_.ended(book_.taken(call_of(method, 1), kCaller));
  }
  std::vector<std::string> names;
  for (const auto& t : reported()) names.push_back(t.method);
  EXPECT_EQ(names, (std::vector<std::string>{longest, "a", "b", "", longest, "a"}));
  EXPECT_EQ(book_.name("a", ""), book_.name("a", ""));
  EXPECT_NE(book_.name("a", ""), book_.name("a", "f"));
}

TEST_F(CallBookTest, AnEndedCallMakesRoomForTheNext) {
  const auto first = book_.taken(call_of("add", 1), kCaller);
  book_.ended(first);
  EXPECT_EQ(book_.taken(call_of("add", 2), kCaller), first);
}

TEST_F(CallBookTest, AnEndIsNotedOnce) {
  const auto entry = book_.taken(call_of("add", 1), kCaller);
  book_.ended(entry);
  book_.ended(entry);
  book_.ended(nullptr);
  EXPECT_EQ(reported().size(), 1u);
}

TEST(TaskNumberTest, TheAttemptIsPartOfIt) {
  EXPECT_EQ(task_number(5, 0), 5u);
  EXPECT_EQ(task_number(task_number(5, 3), 0), 5u);
  EXPECT_EQ(task_number(5, 1000) >> 56, 255u);
  EXPECT_FALSE(task_of_pool(task_number(5, 2)));
  EXPECT_TRUE(task_of_pool(task_number(std::uint64_t{1} << kPoolTaskBits, 2)));
}

TEST_F(CallBookTest, CallsAreMeasuredByNameAndState) {
  pass(1s);
  const auto runs = book_.taken(call_of("add", 1), kCaller);
  book_.taken(call_of("slow", 2), kCaller, true);
  book_.ended(book_.taken(call_of("run", 3, "half"), kCaller), kRaisedFailure);
  book_.ended(book_.taken(call_of("run", 4, "half"), kCaller));
  CallBook::Counts waiting;
  waiting.note(TaskState::kPendingArguments, book_, book_.name("add", ""), 2);
  waiting.note(TaskState::kSubmitted, book_, book_.name("add", ""), 5);
  std::vector<MetricFamily> out;
  book_.measure(waiting, out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0].name, "shoal_tasks");
  const auto sample = [](const char* name, const char* state, double n) { return MetricSample{{{"name", name}, {"state", state}}, n, {}}; };
  EXPECT_EQ(out[0].samples,
            (std::vector<MetricSample>{sample("add", "PENDING_ARGS_AVAIL", 2),
                                       sample("slow", "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY", 1), sample("add", "RUNNING", 1)}));
  EXPECT_EQ(out[1].name, "shoal_tasks_unanswered");
  EXPECT_EQ(out[1].samples, (std::vector<MetricSample>{{{{"name", "add"}}, 5, {}}}));
  EXPECT_EQ(out[2].name, "shoal_tasks_ended_total");
  EXPECT_EQ(out[2].samples, (std::vector<MetricSample>{sample("half", "FINISHED", 1), sample("half", "FAILED", 1)}));
  book_.ended(runs);
}

TEST_F(CallBookTest, NamesThatAreMeasuredAreBounded) {
  for (std::uint32_t i = 0; i < CallBook::kMaxMeasured + 20; ++i)
    book_.ended(book_.taken(call_of("m" + std::to_string(i), i + 1), kCaller));
  std::vector<MetricFamily> out;
  book_.measure({}, out);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_LE(out[0].samples.size(), 2 * CallBook::kMaxMeasured + 2);
  double all = 0;
  for (const auto& s : out[0].samples) all += s.value;
  EXPECT_EQ(all, CallBook::kMaxMeasured + 20);
}

}  // namespace
}  // namespace shoal::actors
