// Remote functions: waiting tasks, their workers and their retries. One pool per kind of worker (resources, place, environment). Loop
// thread only.
//
// A task waits here until the references among its arguments are ready and a worker is free (waiting_tasks.h), so none queues behind a
// long one. A worker gets several tasks of short functions at once: as many as it runs in `pipelined`, by the time of past calls
// (call_times.h). Behind a function of unknown length it gets none (pool_workers.h). The owner makes and ends workers; it is notified when
// there is something to do (take_wants). Spread tasks go to nodes in turn, and a node whose worker is being made is waited for.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "actors/session/call_book.h"
#include "actors/session/tasks/call_times.h"
#include "actors/session/tasks/cpu_lending.h"
#include "actors/session/tasks/pool_workers.h"
#include "actors/session/tasks/waiting_tasks.h"

namespace shoal::actors {

class TaskPool {
 public:
  using Task = FunctionTask;
  using Judgement = WaitingTasks::Judgement;
  using Lending = CpuLending::Ways;
  using Options = TaskPoolOptions;
  struct Wants {
    std::size_t workers = 0;         // additional ones, for waiting tasks
    bool starting = false;           // some are not made yet
    bool alone = false;              // no worker has its CPUs, or is about to
    bool empty = false;              // no workers at all
    std::vector<ActorId> ended;      // to be retired: idle for long, used up, or wanted by others
    std::vector<ActorId> condemned;  // to be killed at once: their tasks were cancelled by force
    std::vector<Judgement> raised;   // each needs a call of judged()
  };
  using CallActor = std::function<ValueFuture(Call, std::vector<ValueFuture>)>;
  using CancelCall = std::function<void(const ValueFuture&, CancelHow)>;

  // `wanted` is called when take_wants has something new, once until take_wants is called.
  TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options);
  ~TaskPool() { close(); }
  // Open and later tasks fail as Cancelled.
  void close();

  // Notes ended tasks in `book` as those of process `self`, whose pools share the counter `next`. Both outlive the pool's use of them.
  void note_in(CallBook& book, WorkerId self, std::uint64_t& next) {
    book_ = &book;
    self_ = self;
    next_task_ = &next;
  }
  // Tasks are spread over nodes from now on; `node` returns a worker's.
  void spread(std::function<NodeId(ActorId)> node) { workers_.spread(std::move(node)); }
  // The CPUs of idle workers are lent from now on.
  void lend(Lending lending) { lending_.begin(std::move(lending)); }
  // Appends tasks without a worker, up to `limit` rows in all; returns the number omitted.
  std::uint64_t tell(std::vector<TaskReport>& out, std::size_t limit) const;
  // True if there are tasks without a worker; the others are calls.
  bool any_open() const { return !tasks_.empty(); }
  // The same tasks, counted.
  void count(CallBook::Counts& counts) const;

  // The function's result or exception; Unavailable/WorkerCrashed when its worker died at each attempt.
  ValueFuture submit(Task task);
  // The task number of the next submitted task; 0: tasks are not counted.
  std::uint64_t next_number() const { return next_task_ == nullptr ? 0 : *next_task_; }
  // Adds an actor whose method `run` runs a task. If `made` fails, the first waiting task loses an attempt. `node`: its node, if known
  // (when spreading).
  void add(ActorId worker, const ValueFuture& made, NodeId node = {});
  // When spreading: the nodes among these that should get a worker, in the order of their turns. They have none, and suffice for the
  // waiting tasks without a starting worker, plus one.
  std::vector<NodeId> next_nodes(std::vector<NodeId> roomy) const;
  // Others wait for the workers' resources. Idle workers older than `lease` end; if there are none, the oldest gets no more tasks.
  void give_back(runtime::Duration lease) { workers_.give_back(lease); }
  // The function of the first waiting task; "" when none waits.
  std::string first_waiting() const { return tasks_.none_ready() ? "" : tasks_.first().spec.name; }
  // Also ends workers that were idle for `idle`.
  Wants take_wants(runtime::Duration idle);
  void judged(std::uint64_t id, bool again);
  // A task without a worker fails as Cancelled/TaskCancelled; one with a worker is interrupted there. `force` ends the worker that runs
  // it. No retry follows. No effect on other pools' and finished tasks.
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // No worker can be made: waiting tasks fail.
  void fail_waiting(const Error& cause);

 private:
  // kAgain: something changed while tasks were assigned.
  enum class Dispatch { kIdle, kRuns, kAgain };

  void dispatch();
  void dispatch_now();
  void made(ActorId id, const Result<Value>& result);
  void start(ActorId id, PoolWorker& worker, const PoolTaskPtr& task);
  void done(ActorId id, const PoolTaskPtr& task, const Result<Value>& result);
  // The attempt is over, and the task is finished or waits again.
  void ended(PoolWorker& worker, const PoolTaskPtr& task, const Result<Value>& result);
  void lost(PoolWorker& worker, const PoolTaskPtr& task, const Error& how);
  void crashed(const PoolTaskPtr& task, const Error& how);
  // Notes the end of an attempt, or of a task that was not sent.
  void note(const PoolTask& task, std::string_view failure);
  // Notes the result and sets the promise.
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
  std::vector<ActorId> condemned_;  // to be killed, not reported yet
  CallBook* book_ = nullptr;
  WorkerId self_;
  std::uint64_t* next_task_ = nullptr;
  Dispatch dispatch_ = Dispatch::kIdle;
  bool closed_ = false, reported_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
