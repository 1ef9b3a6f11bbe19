// Remote functions: waiting tasks, their workers and their retries. One pool per kind of worker (resources, place, environment). Loop
// thread only.
//
// A task waits here until the references among its arguments are ready and a worker is free (waiting_tasks.h). So no task queues behind a
// long one. A worker gets several tasks of short functions at once: as many as last for TaskPoolOptions::pipelined together, by the mean
// durations of past calls (call_times.h). While it runs a function of unknown duration, it gets no further task (pool_workers.h). The owner
// of the pool makes and ends workers; `wanted` notifies the owner when take_wants() has something to do. If tasks are spread, they go to
// nodes in turn, and wait for a node whose worker is being made.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/session/references/call_book.h"
#include "actors/session/tasks/call_times.h"
#include "actors/session/tasks/cpu_lending.h"
#include "actors/session/tasks/pool_workers.h"
#include "actors/session/tasks/waiting_tasks.h"

namespace shoal::actors {

class TaskPool {
 public:
  using Task = FunctionTask;
  using Judgement = WaitingTasks::Judgement;
  using Lending = CpuLending::Requests;
  using Options = TaskPoolOptions;
  struct Wants {
    std::size_t workers = 0;  // workers to be made, for waiting tasks
    bool starting = false;    // some workers are not made yet
    // The CPUs of all workers are lent and do not come back soon, so one more worker is to be made, even without room.
    bool alone = false;
    bool empty = false;  // the pool has no workers
    // Workers to be retired: idle for long, used up, or wanted by other jobs.
    std::vector<ActorId> ended;
    // Workers to be killed at once, since their tasks were cancelled by force.
    std::vector<ActorId> condemned;
    std::vector<Judgement> raised;  // tasks that raised: each needs a call of judged()
  };
  using CallActor = std::function<ValueFuture(Call, std::vector<ValueFuture>)>;
  using CancelCall = std::function<void(const ValueFuture&, CancelHow)>;

  // `wanted` is called when take_wants() has something new, and then not again until take_wants() is called.
  TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options);
  ~TaskPool() { close(); }
  // Fails unfinished tasks, and those submitted later, as Cancelled.
  void close();

  // Enters ended tasks into `book` as tasks of process `self`. All pools of the process share the counter `next` of task numbers.
  // `book` and `next` outlive the pool's use of them.
  void note_in(CallBook& book, WorkerId self, std::uint64_t& next) {
    book_ = &book;
    self_ = self;
    next_task_ = &next;
  }
  // Spreads tasks over nodes from now on; `node` returns the node of a worker.
  void spread(std::function<NodeId(ActorId)> node) { workers_.spread(std::move(node)); }
  // Lends the CPUs of idle workers from now on.
  void lend(Lending lending) { lending_.begin(std::move(lending)); }
  // Appends tasks without a worker, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  // True if there are tasks without a worker. Tasks that a worker has are calls, which ActorCalls counts.
  bool any_open() const { return !tasks_.empty(); }
  // Adds the numbers of tasks without a worker.
  void count(CallBook::Counts& counts) const;

  // The future of the function's result or exception. Fails as Unavailable/WorkerCrashed if its worker died in each attempt.
  ValueFuture submit(Task task);
  // The number that the next submitted task will get; 0 if tasks have no numbers (note_in).
  std::uint64_t next_number() const { return next_task_ == nullptr ? 0 : *next_task_; }
  // Adds a worker: an actor whose method `run` runs a task. `created`: the answer to its construction. If that fails, the first waiting
  // task loses an attempt. `node`: the worker's node, if tasks are spread and it is known.
  void add(ActorId worker, const ValueFuture& created, NodeId node = {});
  // If tasks are spread: the nodes in `roomy` that should get a worker, in the order of their turns. They have no worker yet. There are as
  // many as waiting tasks without a starting worker, plus one.
  std::vector<NodeId> next_nodes(std::vector<NodeId> roomy) const;
  // To be called when other jobs wait for the workers' resources. Retires the idle workers older than `lease` or, if there are none, the
  // oldest one.
  void give_back(runtime::Duration lease) { workers_.give_back(lease); }
  // The name of the first waiting task's function; "" if none waits.
  std::string first_waiting() const { return tasks_.none_ready() ? "" : tasks_.first().spec.name; }
  // Returns the owner's next things to do. Workers that were idle for longer than `idle`, with nothing to do, are among `ended`.
  Wants take_wants(runtime::Duration idle);
  void judged(std::uint64_t id, bool again);
  // A task without a worker fails as Cancelled/TaskCancelled; one that a worker has is interrupted there. `force` ends the worker that runs
  // the task. No retry follows. No effect on finished tasks and those of other pools.
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // To be called when no worker can be made: fails the tasks that wait for one.
  void fail_waiting(const Error& cause);

 private:
  // kAgain: tasks or workers changed while dispatch() ran, so it goes round once more.
  enum class Dispatch { kIdle, kRuns, kAgain };

  void dispatch();
  void dispatch_now();
  void worker_created(ActorId id, const Result<Value>& result);
  void start(ActorId id, PoolWorker& worker, const PoolTaskPtr& task);
  void answered(ActorId id, const PoolTaskPtr& task, const Result<Value>& result);
  // An attempt has ended: finishes the task, or lets it wait again.
  void ended(PoolWorker& worker, const PoolTaskPtr& task, const Result<Value>& result);
  void lost(PoolWorker& worker, const PoolTaskPtr& task, const Error& how);
  void crashed(const PoolTaskPtr& task, const Error& how);
  // Enters the end of an attempt into the book, or of a task that was never sent.
  void note(const PoolTask& task, std::string_view failure);
  // Enters the result into the book and sets the promise.
  void finish(const PoolTaskPtr& task, const Result<Value>& result);
  void cancel_sent(ActorId id, PoolWorker& worker, const PoolTaskPtr& task, CancelHow how);
  void want();

  runtime::Clock& clock_;
  const CallActor call_;
  const CancelCall cancel_;
  const std::function<void()> wanted_;
  const Options options_;
  WaitingTasks tasks_;
  PoolWorkers workers_;
  CpuLending lending_;
  CallTimes times_;
  std::vector<ActorId> condemned_;  // workers to be killed that take_wants() has not returned yet
  CallBook* book_ = nullptr;
  WorkerId self_;
  std::uint64_t* next_task_ = nullptr;
  Dispatch dispatch_ = Dispatch::kIdle;
  bool closed_ = false, reported_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
