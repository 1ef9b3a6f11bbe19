#include "actors/session/tasks/task_pool.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::actors {
namespace {

using namespace std::chrono_literals;

Value text_value(const std::string& text, Value::Kind kind = Value::Kind::kResult) {
  return Value::make({std::as_bytes(std::span(text))}, kind).value();
}

std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return f.peek().error().reason();
  const auto head = f.peek()->pieces().at(0);
  return (f.peek()->raised() ? "raised " : "") + std::string(reinterpret_cast<const char*>(head.data()), head.size());
}

// Workers that answer on the test's command.
class TaskPoolTest : public testing::Test {
 protected:
  static constexpr ActorId kA{1}, kB{2};

  struct Running {
    ActorId worker;
    std::string what;
    runtime::Promise<Value> promise;
  };

  ValueFuture run(Call call) {
    if (gone_.contains(call.actor)) {
      const runtime::Promise<Value> refused;
      refused.set(fail(unavailable("actor functions died: ").because(unavailable("was killed")).with_reason("ActorDied")));
      return refused.future();
    }
    const auto head = call.args.pieces().at(0);
    running_.push_back({call.actor, std::string(reinterpret_cast<const char*>(head.data()), head.size()), {}});
    return running_.back().promise.future();
  }
  TaskPool::Task task(const std::string& what, std::uint64_t function = 1) {
    TaskPool::Task t;
    t.name = what;
    t.function = function;
    t.args = text_value(what);
    return t;
  }
  ValueFuture submit(const std::string& what) { return pool_.submit(task(what)); }
  void worker(ActorId id) {
    const runtime::Promise<Value> made;
    made.set(text_value(""));
    pool_.add(id, made.future());
  }
  // "1:a 2:b": running tasks by worker, in the order of sending.
  std::string running() const {
    std::string out;
    for (const auto& r : running_) out += (out.empty() ? "" : " ") + std::to_string(r.worker.value) + ":" + r.what;
    return out;
  }
  void answers(const std::string& what, Result<Value> result) {
    const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& r) { return r.what == what; });
    ASSERT_NE(it, running_.end()) << what << " does not run";
    const auto promise = it->promise;
    running_.erase(it);
    promise.set(std::move(result));
  }
  void returns(const std::string& what) { answers(what, text_value("<" + what + ">")); }
  void raises(const std::string& what) { answers(what, text_value("<" + what + ">", Value::Kind::kRaised)); }
  void dies(ActorId id) {
    for (auto it = running_.begin(); it != running_.end();) {
      if (it->worker != id) {
        ++it;
        continue;
      }
      const std::string what = it->what;
      answers(what, fail(unavailable("actor functions died: ").because(unavailable("was killed")).with_reason("ActorDied")));
      it = running_.begin();
    }
  }
  void pass(runtime::Duration time) { world_.run_for(time); }

  runtime::SimWorld world_{runtime::SimWorld::Options()};
  int reported_ = 0;
  std::vector<Running> running_;
  // "a", "a by force"
  void cancel(const ValueFuture& attempt, CancelHow how) {
    for (const auto& r : running_) {
      if (r.promise.future() == attempt) cancelled_.push_back(r.what + (how.force ? " by force" : ""));
    }
  }
  std::vector<std::string> cancelled_;
  std::set<ActorId> gone_;  // ends that the pool has not detected
  explicit TaskPoolTest(TaskPool::Options options = {})
      : pool_(
            world_.clock(), [this](Call call, std::vector<ValueFuture>) { return run(std::move(call)); },
            [this](const ValueFuture& attempt, CancelHow how) { cancel(attempt, how); }, [this] { ++reported_; }, options) {}
  TaskPool pool_;
};

class DelayedTaskPoolTest : public TaskPoolTest {
 protected:
  DelayedTaskPoolTest() : TaskPoolTest({.retry_delay = 1s}) {}
  TaskPool::Task mortal(const std::string& what) {
    auto out = task(what);
    out.retries = 1;
    return out;
  }
};

// A head that gives CPUs back when `room_` says so.
class LendingTaskPoolTest : public TaskPoolTest {
 protected:
  LendingTaskPoolTest() {
    pool_.lend({.lend = [this](ActorId id) { lent_.insert(id); },
                .resume =
                    [this](ActorId id, std::function<void(bool)> done) {
                      ++asked_;
                      if (room_) lent_.erase(id);
                      done(room_);
                    }});
  }
  std::set<ActorId> lent_;
  bool room_ = true;
  int asked_ = 0;
};

// Workers 1, 3, 5, .. are on node 1, the others on node 2.
class SpreadTest : public TaskPoolTest {
 protected:
  SpreadTest() { pool_.spread(&SpreadTest::node_of); }
  static NodeId node_of(ActorId worker) { return NodeId{2 - worker.value % 2}; }
  runtime::Promise<Value> being_made(ActorId id) {
    const runtime::Promise<Value> made;
    pool_.add(id, made.future(), node_of(id));
    return made;
  }
  // Runs the tasks one after the other.
  std::string where(std::initializer_list<const char*> tasks) {
    std::string out;
    for (const std::string what : tasks) {
      const auto result = submit(what);
      out += (out.empty() ? "" : " ") + running();
      returns(what);
      EXPECT_TRUE(result.ready());
    }
    return out;
  }
};

TEST_F(SpreadTest, NodesHaveTheirTurns) {
  worker(kA);
  worker(kB);
  EXPECT_EQ(where({"a", "b", "c", "d", "e"}), "1:a 2:b 1:c 2:d 1:e");
  worker(ActorId{3});  // a second worker on node 1 makes no difference
  EXPECT_EQ(where({"f", "g", "h"}), "2:f 1:g 2:h");
}

TEST_F(SpreadTest, AtMostOneNodeMoreThanWaitingTasksGetsWorkers) {
  const std::vector<NodeId> roomy = {NodeId{4}, NodeId{1}, NodeId{2}, NodeId{3}};
  using Nodes = std::vector<NodeId>;
  EXPECT_EQ(pool_.next_nodes(roomy), Nodes{NodeId{4}});
  const auto first = being_made(kA);
  EXPECT_EQ(pool_.next_nodes(roomy), Nodes{});  // one is being made
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(pool_.next_nodes(roomy), (Nodes{NodeId{4}, NodeId{2}, NodeId{3}}));
  first.set(text_value(""));
  EXPECT_EQ(running(), "1:a");
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}}), Nodes{NodeId{2}});  // no further nodes
  worker(kB);
  EXPECT_EQ(pool_.next_nodes(roomy), (Nodes{NodeId{4}, NodeId{3}}));
}

TEST_F(SpreadTest, NodesGetWorkersInTheirTurns) {
  worker(kA);
  worker(kB);
  EXPECT_EQ(where({"a", "b", "c"}), "1:a 2:b 1:c");
  pass(2s);
  EXPECT_EQ(pool_.take_wants(1s).ended, (std::vector<ActorId>{kA, kB}));
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}}), std::vector<NodeId>{NodeId{2}});
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}, NodeId{3}}), std::vector<NodeId>{NodeId{3}});  // it never had its turn
}

TEST_F(SpreadTest, ATaskWhoseNextNodeIsBusyGoesElsewhere) {
  worker(kA);
  worker(kB);
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(running(), "1:a 2:b");
  returns("a");
  EXPECT_EQ(running(), "2:b 1:c");  // although node 1 would be next
}

TEST_F(SpreadTest, TheTurnOfANodeIsKeptWhileItsWorkerIsMade) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  const auto b = submit("b");
  EXPECT_EQ(running(), "");
  second.set(text_value(""));
  EXPECT_EQ(running(), "2:b");
}

TEST_F(SpreadTest, TheTurnOfANodeThatGetsNoWorkerIsNotKeptForEver) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  const auto b = submit("b");
  pass(10s);
  EXPECT_EQ(running(), "1:b");
  returns("b");
  EXPECT_EQ(where({"c", "d"}), "1:c 1:d");
}

TEST_F(SpreadTest, ANodeWhoseWorkerCannotStartLosesItsTurn) {
  worker(kA);
  const auto second = being_made(kB);
  EXPECT_EQ(where({"a"}), "1:a");
  const auto b = pool_.submit(task("b"));  // allowed one run, which it has not had
  second.set(fail(unavailable("its node is gone")));
  EXPECT_EQ(running(), "1:b");
}

TEST_F(SpreadTest, AfterOneThatCannotBeMadeOthersAreWantedLater) {
  worker(kA);
  const auto a = submit("a"), b = submit("b");
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);
  for (const auto pause : {1s, 2s, 4s}) {
    being_made(kB).set(fail(unavailable("no interpreter there")));
    EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
    pass(pause - 1ms);
    EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
    EXPECT_TRUE(pool_.next_nodes({NodeId{2}, NodeId{3}}).empty());
    pass(1ms);
    EXPECT_EQ(pool_.take_wants(1h).workers, 1u);
    EXPECT_EQ(pool_.next_nodes({NodeId{2}, NodeId{3}}).size(), 2u);
  }
}

TEST_F(SpreadTest, ASlowWorkerStartDoesNotPreventOthers) {
  worker(kA);
  const auto second = being_made(kB);
  const auto a = submit("a"), b = submit("b");
  EXPECT_EQ(running(), "1:a");
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);  // one is being made
  pass(10s);
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);  // the first one's node may have no room
  EXPECT_EQ(pool_.next_nodes({NodeId{1}, NodeId{2}, NodeId{3}, NodeId{4}, NodeId{5}}).size(), 2u);
}

TEST_F(TaskPoolTest, EachWorkerGetsOneAndTheOthersWait) {
  const auto a = submit("a"), b = submit("b"), c = submit("c");
  EXPECT_EQ(reported_, 1);  // once, until take_wants
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
  const auto a = submit("a");  // allowed one run
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
  pool_.submit(task("slow", 2));  // duration unknown
  EXPECT_EQ(running(), "1:b 1:c 1:d");
  for (const auto* name : {"b", "c", "d"}) {
    pass(100us);
    returns(name);
  }
  EXPECT_EQ(running(), "1:slow");
  submit("e");  // quick, but behind a task of unknown length
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
  EXPECT_EQ(running(), "2:once 2:never 2:third");  // in order; the one without a retry had not begun
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

TEST_F(LendingTaskPoolTest, AWorkerWithoutWorkLendsItsCpusAndHasThemAgainBeforeItsNextTask) {
  worker(kA);
  submit("a");
  pass(100ms);
  EXPECT_TRUE(lent_.empty());
  returns("a");
  submit("b");  // no pause between them
  returns("b");
  EXPECT_EQ(asked_, 0);
  pass(100ms);
  EXPECT_EQ(lent_, std::set<ActorId>{kA});
  submit("c");
  EXPECT_EQ(running(), "1:c");
  EXPECT_TRUE(lent_.empty());
}

TEST_F(LendingTaskPoolTest, AWorkerWithoutItsLentCpusRunsNothingAndAnotherIsRequested) {
  worker(kA);
  pass(100ms);
  EXPECT_EQ(lent_, std::set<ActorId>{kA});
  room_ = false;
  submit("a");
  EXPECT_EQ(running(), "");
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);  // the CPUs may come back soon
  pass(70ms);
  EXPECT_EQ(asked_, 4);
  EXPECT_FALSE(pool_.take_wants(1h).alone);
  pass(10ms);
  const auto wants = pool_.take_wants(1h);
  EXPECT_TRUE(wants.alone && !wants.empty);
  EXPECT_EQ(wants.workers, 1u);
  room_ = true;
  pass(100ms);
  EXPECT_EQ(running(), "1:a");
  EXPECT_FALSE(pool_.take_wants(1h).alone);
}

TEST_F(LendingTaskPoolTest, NoMoreWorkersAreRequestedThanTasksWait) {
  worker(kA);
  worker(kB);
  pass(100ms);
  EXPECT_EQ(lent_.size(), 2u);
  submit("a");
  EXPECT_EQ(lent_.size(), 1u);
  EXPECT_EQ(pool_.take_wants(1h).workers, 0u);
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
  EXPECT_TRUE(pool_.take_wants(1h).raised.empty());  // reported once
  pool_.judged(wants.raised[0].id, true);
  pass(10ms);
  raises("plain");
  EXPECT_EQ(outcome(plain), "raised <plain>");
  raises("judged");
  EXPECT_EQ(outcome(result), "raised <judged>");  // no retry is left
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
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());  // the lease is not over
  submit("a");
  submit("b");
  submit("c");
  EXPECT_EQ(running(), "1:a 2:b");
  pass(1s);
  pool_.give_back(1s);
  EXPECT_TRUE(pool_.take_wants(1h).ended.empty());  // running tasks finish first
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
  EXPECT_EQ(pool_.take_wants(1h).workers, 1u);  // one is on its way
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

TEST_F(TaskPoolTest, ItsEndFailsUnfinishedTasks) {
  worker(kA);
  const auto runs = submit("a"), waits = submit("b");
  pool_.close();
  EXPECT_EQ(runs.peek().error().code(), Code::kCancelled);
  EXPECT_EQ(waits.peek().error().code(), Code::kCancelled);
  returns("a");  // late and without effect
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
  EXPECT_EQ(outcome(result), "pending");  // until its worker answers,
  dies(kA);                               // or dies
  EXPECT_EQ(outcome(result), "TaskCancelled");
  EXPECT_EQ(outcome(next), "pending");
  worker(kB);
  EXPECT_EQ(running(), "2:next");
}

// The other task never began, and keeps its retries.
TEST_F(TaskPoolTest, ForceEndsTheWorkerThatRunsTheTask) {
  worker(kA);
  for (const auto* name : {"x", "y"}) {  // quick ones
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
  EXPECT_EQ(reported[1].number, std::uint64_t{1} << kPoolTaskBits);
  EXPECT_EQ(reported[1].error, "WORKER_DIED");
  EXPECT_EQ(reported[1].actor, kA);
  EXPECT_EQ(reported[1].end_unix_us - reported[1].start_unix_us, 1'000'000);
  EXPECT_EQ(reported[0].number, task_number(reported[1].number, 1));
  EXPECT_EQ(reported[0].state, TaskState::kFinished);
  EXPECT_EQ(reported[0].actor, kB);
  EXPECT_EQ(reported[0].end_unix_us - reported[0].start_unix_us, 3'000'000);
}

TEST_F(NotedTaskPoolTest, AnUnbegunTaskIsNoAttempt) {
  submit("a");
  worker(kA);
  pass(500us);
  returns("a");  // its duration is known from now on
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
  EXPECT_EQ(pool_.tell(out, 2), 1u);
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(pool_.tell(out, 2), 3u);
}

}  // namespace
}  // namespace shoal::actors
