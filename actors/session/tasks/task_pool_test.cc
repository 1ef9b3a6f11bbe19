#include "actors/session/tasks/task_pool_fixture.h"

namespace shoal::actors {
namespace {

TEST_F(TaskPoolTest, EachWorkerGetsOneAndTheOthersWait) {
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(reported_, 1);  // notified once, until take_wants() is called
  EXPECT_EQ(pool_.take_wants(1h).workers, 3u);
  worker(kA);
  worker(kB);
  EXPECT_EQ(running(), "1:a 2:b");
  pass(10ms);
  returns("b");
  EXPECT_EQ(running(), "1:a 2:c");
  EXPECT_EQ(outcome(b), "<b>");
  EXPECT_EQ(outcome(a), "pending");
}

TEST_F(TaskPoolTest, ATaskSentToADeadIdleWorkerHasNotBegun) {
  worker(kA);
  gone_.insert(kA);
  const auto a = submit("a");  // the task has no retries
  EXPECT_EQ(outcome(a), "pending");
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);
  worker(kB);
  EXPECT_EQ(running(), "2:a");
  dies(kB);
  EXPECT_EQ(outcome(a), "WorkerCrashed");
}

TEST_F(TaskPoolTest, AWorkerGetsSeveralQuickFunctions) {
  worker(kA);
  submit("a");
  pass(100us);
  returns("a");
  for (const auto* name : {"b", "c", "d"}) submit(name);
  EXPECT_EQ(running(), "1:b 1:c 1:d");
  pool_.submit(task("slow", 2));  // the duration of "slow" is not known yet
  EXPECT_EQ(running(), "1:b 1:c 1:d");
  for (const auto* name : {"b", "c", "d"}) {
    pass(100us);
    returns(name);
  }
  EXPECT_EQ(running(), "1:slow");
  // A short one, but no task is sent behind one of unknown length.
  submit("e");
  EXPECT_EQ(running(), "1:slow");
  worker(kB);
  EXPECT_EQ(running(), "1:slow 2:e");
}

TEST_F(TaskPoolTest, ATaskThatWaitsForAReferenceBlocksNoOther) {
  worker(kA);
  const runtime::Promise<Value> first;
  auto blocked = task("blocked");
  blocked.deps = {first.future()};
  const auto result = pool_.submit(std::move(blocked));
  submit("other");
  EXPECT_EQ(running(), "1:other");
  first.set(text_value("x"));
  pass(10ms);
  returns("other");
  EXPECT_EQ(running(), "1:blocked");
  returns("blocked");
  EXPECT_EQ(outcome(result), "<blocked>");
}

TEST_F(TaskPoolTest, UsedUpAndIdleWorkersEnd) {
  worker(kA);
  worker(kB);
  auto last = task("last");
  last.max_calls = 1;
  pool_.submit(std::move(last));
  EXPECT_EQ(running(), "1:last");
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());
  returns("last");
  EXPECT_EQ(pool_.take_wants(1h).ended, std::vector<ActorId>{kA});
  submit("next");
  EXPECT_EQ(running(), "2:next");
  returns("next");
  pass(3s);
  EXPECT_EQ(pool_.take_wants(2s).ended, std::vector<ActorId>{kB});
  EXPECT_TRUE(pool_.take_wants(2s).alone);
}

TEST_F(TaskPoolTest, AWantedWorkerIsTheIdleOneOrTheOldestAfterItsTask) {
  worker(kA);
  pass(100ms);
  worker(kB);
  pass(200ms);
  pool_.give_back(1s);
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());  // the workers are younger than the lease
  submit("a");
  submit("b");
  submit("c");
  EXPECT_EQ(running(), "1:a 2:b");
  pass(1s);
  pool_.give_back(1s);
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());  // workers end only after the tasks that they run
  returns("a");
  EXPECT_EQ(running(), "2:b");
  EXPECT_EQ(pool_.take_wants(1h).ended, std::vector<ActorId>{kA});
  returns("b");
  EXPECT_EQ(running(), "2:c");
  returns("c");
  pool_.give_back(1s);
  EXPECT_EQ(pool_.take_wants(1h).ended, std::vector<ActorId>{kB});
  EXPECT_TRUE(pool_.take_wants(1h).alone);
}

TEST_F(TaskPoolTest, AWorkerThatCannotStartCostsTheFirstTaskAnAttempt) {
  const auto a = submit("a"), b = submit("b");
  const runtime::Promise<Value> made;
  pool_.add(kA, made.future());
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);  // for two tasks, since one worker is being made
  made.set(fail(unavailable("actor functions died: ").because(unavailable("no such program")).with_reason("ActorDied")));
  EXPECT_EQ(outcome(a), "WorkerCrashed");
  EXPECT_EQ(outcome(b), "pending");
  pool_.fail_waiting(resource_exhausted("no").with_reason("Unschedulable"));
  EXPECT_EQ(outcome(b), "Unschedulable");
}

TEST_F(TaskPoolTest, AWorkerThatNoNodeCouldEverHoldFailsAllThatWait) {
  const auto a = submit("a"), b = submit("b");
  const runtime::Promise<Value> made;
  pool_.add(kA, made.future());
  made.set(fail(resource_exhausted("its required node was lost").with_reason("Unschedulable")));
  EXPECT_EQ(outcome(a), "TaskUnschedulable");
  EXPECT_EQ(outcome(b), "TaskUnschedulable");
}

TEST_F(TaskPoolTest, AWorkerThatIsRefusedWhileOthersAreMadeFailsTheLastTask) {
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  const runtime::Promise<Value> made, refused;
  pool_.add(kA, made.future());
  pool_.add(kB, refused.future());
  refused.set(fail(resource_exhausted("its required node has no room for it now").with_reason("Unschedulable")));
  EXPECT_EQ(outcome(c), "TaskUnschedulable");
  EXPECT_EQ(outcome(b), "pending") << "another worker is requested for it";
  pool_.add(kB, refused.future());
  EXPECT_EQ(outcome(b), "TaskUnschedulable");
  EXPECT_EQ(outcome(a), "pending") << "the worker that is being made is for it";
  pool_.add(kB, refused.future());
  EXPECT_EQ(outcome(a), "pending");
}

TEST_F(TaskPoolTest, ItsEndFailsUnfinishedTasks) {
  worker(kA);
  const auto runs = submit("a"), waits = submit("b");
  pool_.close();
  EXPECT_EQ(runs.peek().error().code(), Code::kCancelled);
  EXPECT_EQ(waits.peek().error().code(), Code::kCancelled);
  returns("a");  // an answer that comes late has no effect
  EXPECT_EQ(submit("c").peek().error().code(), Code::kCancelled);
}

TEST_F(TaskPoolTest, AWaitingTaskIsCancelledAtOnceAndForGood) {
  const runtime::Promise<Value> argument;
  auto blocked = task("blocked");
  blocked.deps.push_back(argument.future());
  const auto waits_for_it = pool_.submit(std::move(blocked)), waits = submit("waits");
  pool_.cancel(waits_for_it, {});
  pool_.cancel(waits, {});
  EXPECT_EQ(outcome(waits_for_it), "TaskCancelled");
  EXPECT_EQ(outcome(waits), "TaskCancelled");
  argument.set(text_value("late"));
  worker(kA);
  EXPECT_EQ(running(), "");
  pass(3s);
  EXPECT_EQ(pool_.take_wants(2s).ended, std::vector<ActorId>{kA});
}

TEST_F(TaskPoolTest, AnUnneededStartingWorkerEnds) {
  const auto waits = submit("waits");
  const runtime::Promise<Value> made;
  pool_.add(kA, made.future());
  pool_.cancel(waits, {});
  EXPECT_TRUE(pool_.take_wants(2s).ended.empty());
  pass(3s);
  EXPECT_EQ(pool_.take_wants(2s).ended, std::vector<ActorId>{kA});
  made.set(fail(unavailable("actor functions died: ").because(unavailable("killed")).with_reason("ActorDied")));
}

TEST_F(TaskPoolTest, AJudgedTaskIsNotRepeatedAfterACancel) {
  worker(kA);
  auto judged = task("judged");
  judged.judge_raised = true;
  judged.retries = -1;
  const auto result = pool_.submit(std::move(judged));
  raises("judged");
  const auto wants = pool_.take_wants(1h);
  ASSERT_EQ(wants.raised.size(), 1u);
  pool_.cancel(result, {});
  EXPECT_EQ(outcome(result), "TaskCancelled");
  pool_.judged(wants.raised[0].id, true);
  EXPECT_EQ(running(), "");
}

TEST_F(TaskPoolTest, ACancelledRunningTaskIsInterruptedAndNotRepeated) {
  worker(kA);
  auto runs = task("runs");
  runs.retries = -1;
  const auto result = pool_.submit(std::move(runs)), next = submit("next");
  pool_.cancel(result, {});
  EXPECT_EQ(cancelled_, std::vector<std::string>{"runs"});
  // The result comes when the worker answers or dies.
  EXPECT_EQ(outcome(result), "pending");
  dies(kA);
  EXPECT_EQ(outcome(result), "TaskCancelled");
  EXPECT_EQ(outcome(next), "pending");
  worker(kB);
  EXPECT_EQ(running(), "2:next");
}

// The task "behind" has not begun when its worker ends, and keeps its retries.
TEST_F(TaskPoolTest, ForceEndsTheWorkerThatRunsTheTask) {
  worker(kA);
  for (const auto* name : {"x", "y"}) {  // short functions, whose duration is known then
    submit(name);
    pass(100us);
    returns(name);
  }
  const auto runs = submit("runs"), behind = submit("behind");
  ASSERT_EQ(running(), "1:runs 1:behind");
  pool_.cancel(runs, {.recursive = true, .force = true});
  EXPECT_EQ(cancelled_, std::vector<std::string>{"runs by force"});
  EXPECT_EQ(outcome(runs), "TaskCancelled");
  EXPECT_EQ(pool_.take_wants(1h).condemned, std::vector<ActorId>{kA});
  dies(kA);
  worker(kB);
  EXPECT_EQ(running(), "2:behind");
  pool_.cancel(behind, {.recursive = true, .force = true});
  EXPECT_EQ(pool_.take_wants(1h).condemned, std::vector<ActorId>{kB});
  EXPECT_TRUE(pool_.take_wants(1h).alone);
}

TEST_F(TaskPoolTest, ForceOnAnUnbegunTaskEndsNoWorker) {
  worker(kA);
  submit("x");
  pass(100us);
  returns("x");
  submit("runs");
  const auto behind = submit("behind");
  ASSERT_EQ(running(), "1:runs 1:behind");
  pool_.cancel(behind, {.recursive = true, .force = true});
  EXPECT_EQ(cancelled_, std::vector<std::string>{"behind"});
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());
}

TEST_F(TaskPoolTest, ChildrenAreThoseOfOneCall) {
  worker(kA);
  auto mine = task("mine"), other = task("other");
  mine.parent = {1, 7};
  other.parent = {2, 7};
  const auto cancelled = pool_.submit(std::move(mine)), goes_on = pool_.submit(std::move(other));
  pool_.cancel_children({1, 7}, {});
  EXPECT_EQ(cancelled_, std::vector<std::string>{"mine"});
  EXPECT_EQ(outcome(goes_on), "pending");
}

}  // namespace
}  // namespace shoal::actors
