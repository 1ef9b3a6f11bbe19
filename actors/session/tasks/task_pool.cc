#include "actors/session/tasks/task_pool.h"

#include <fmt/format.h>

#include <algorithm>

#include "actors/protocol/cluster/function_worker.h"

namespace shoal::actors {

using State = PoolWorker::State;

namespace {

Error left() { return cancelled("this process left the cluster"); }

bool failed(const ValueFuture& f) { return f.ready() && (!f.peek() || f.peek()->raised()); }

}  // namespace

TaskPool::TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options)
    : clock_(clock),
      call_(std::move(call)),
      cancel_(std::move(cancel)),
      wanted_(std::move(wanted)),
      options_(options),
      tasks_(clock, options.retry_delay, [this] { dispatch(); }),
      workers_(clock, options_, [this] { dispatch(); }),
      lending_(clock, options_, workers_, [this] { dispatch(); }) {}

void TaskPool::close() {
  if (std::exchange(closed_, true)) return;
  *alive_ = false;
  lending_.close();
  std::vector<std::pair<PoolTaskPtr, Result<Value>>> ended;
  for (auto& [task, raised] : tasks_.take_all()) ended.emplace_back(task, raised ? raised->peek() : Result<Value>(fail(left())));
  for (const auto& [id, w] : workers_.close()) {
    for (const auto& task : w.in_flight) ended.emplace_back(task, fail(left()));
  }
  for (auto& [task, result] : ended) task->promise.set(std::move(result));
}

ValueFuture TaskPool::submit(Task task) {
  auto added = std::make_shared<PoolTask>();
  added->spec = std::move(task);
  auto future = added->promise.future();
  if (closed_) {
    added->promise.set(fail(left()));
    return future;
  }
  if (next_task_ != nullptr) added->number = (*next_task_)++;
  tasks_.add(std::move(added));
  return future;
}

// ---- workers

void TaskPool::add(ActorId id, const ValueFuture& created, NodeId node) {
  if (closed_) return;
  workers_.add(id, node);
  created.then([this, alive = alive_, id](const Result<Value>& result) {
    if (*alive) worker_created(id, result);
  });
}

void TaskPool::worker_created(ActorId id, const Result<Value>& result) {
  PoolWorker* const worker = workers_.find(id);
  if (worker == nullptr) return;
  if (result && !result->raised()) {
    workers_.set_ready(id, *worker);
    lending_.lend_soon();
    return dispatch();
  }
  workers_.erase(id);
  if (!result && result.error().reason() == "Unschedulable") {
    // Other workers may still be starting. Each will take one of the first waiting tasks, so a task fails only if there are more tasks than
    // such workers.
    const Error cause = Error(result.error()).with_reason("TaskUnschedulable");
    if (workers_.all().empty()) {
      fail_waiting(cause);
    } else if (tasks_.num_ready() > workers_.num_starting()) {
      finish(tasks_.take_last(), fail(cause));
    }
  } else if (workers_.has_another()) {
    workers_.pause_making();
  } else if (!tasks_.none_ready() && !tasks_.first().use_retry()) {
    crashed(tasks_.take_first(), result ? unavailable("it could not be started") : result.error());
  }
  dispatch();
}

std::vector<NodeId> TaskPool::next_nodes(std::vector<NodeId> roomy) const {
  const std::size_t starting = workers_.num_starting(), wanted = tasks_.num_ready() + 1;
  if (starting >= wanted || !workers_.may_make_more()) return {};
  auto out = workers_.nodes_without(std::move(roomy));
  out.resize(std::min(out.size(), wanted - starting));
  return out;
}

void TaskPool::want() {
  if (!std::exchange(reported_, true)) wanted_();
}

TaskPool::Wants TaskPool::take_wants(runtime::Duration idle) {
  reported_ = false;
  Wants out;
  out.empty = workers_.all().empty();
  out.alone = lending_.all_out();
  const std::size_t starting = workers_.num_starting(), ready = tasks_.num_ready();
  out.ended =
      workers_.take_ended(idle, [&](State state) { return tasks_.none_ready() && (state != State::kStarting || tasks_.none_blocked()); });
  out.condemned = std::exchange(condemned_, {});
  out.starting = starting > 0;
  const std::size_t to_resume = std::min(ready, lending_.num_resumable());
  const std::size_t more = std::min(ready - to_resume, options_.max_workers - std::min(options_.max_workers, workers_.all().size()));
  out.workers = more > starting && workers_.may_make_more() ? more - starting : 0;
  out.raised = tasks_.new_judgements();
  return out;
}

// ---- attempts

// Callbacks of results may call dispatch() again, which then makes the outermost call go round once more instead of recursing.
void TaskPool::dispatch() {
  if (std::exchange(dispatch_, Dispatch::kAgain) != Dispatch::kIdle) return;
  while (dispatch_ == Dispatch::kAgain) {
    dispatch_ = Dispatch::kRuns;
    dispatch_now();
  }
  dispatch_ = Dispatch::kIdle;
}

void TaskPool::dispatch_now() {
  while (!tasks_.none_ready()) {
    const double takes = times_.expected(tasks_.first().spec.function);
    const auto best = workers_.choose(takes);
    if (best == workers_.all().end() || (workers_.spreads() && workers_.keeps_turn(best->second))) break;
    if (best->second.cpus != PoolWorker::Cpus::kHeld) {
      if (lending_.num_requested() >= tasks_.num_ready()) break;
      lending_.resume(best->first, best->second);
      // The next task waits for the CPUs of this worker, whose node has the turn.
      if (workers_.spreads()) break;
      continue;
    }
    if (workers_.spreads()) workers_.take_turn(best->second);
    const PoolTaskPtr task = tasks_.take_first();
    task->expected = takes;
    start(best->first, best->second, task);
  }
  if (!tasks_.none_ready() && workers_.all().size() < options_.max_workers) want();
}

void TaskPool::start(ActorId id, PoolWorker& worker, const PoolTaskPtr& task) {
  task->sent = clock_.now();
  worker.in_flight.push_back(task);
  worker.expected += task->expected;
  if (task->spec.max_calls > 0 && ++worker.calls[task->spec.function] >= task->spec.max_calls) worker.state = State::kRetired;
  Call call;
  call.actor = id;
  call.method = task->spec.method;
  call.args = task->spec.args;
  call.task = task_number(task->number, task->attempts++);
  if (task->spec.name != task->spec.method) call.function = {task, &task->spec.name};
  task->worker = id;
  task->attempt = call_(std::move(call), task->spec.deps);
  task->refused = task->attempt.ready();
  // The callback holds the task weakly, since the task owns the future `attempt`.
  task->attempt.then([this, alive = alive_, id, sent = std::weak_ptr<PoolTask>(task)](const Result<Value>& result) {
    if (!*alive) return;
    if (const PoolTaskPtr task = sent.lock()) answered(id, task, result);
  });
}

void TaskPool::answered(ActorId id, const PoolTaskPtr& task, const Result<Value>& result) {
  PoolWorker* w = workers_.find(id);
  if (w == nullptr) return;
  const auto now = clock_.now();
  if (std::erase(w->in_flight, task) == 0) return;  // cancel_sent() has ended the task by force, and finished it
  // The worker began the task only when it had ended the one before.
  task->sent = std::max(task->sent, w->last_ended);
  w->expected = w->in_flight.empty() ? 0 : w->expected - task->expected;
  ended(*w, task, result);
  // A callback of the result may have removed the worker.
  w = workers_.find(id);
  if (w != nullptr && w->in_flight.empty()) {
    w->idle_since = now;
    if (w->state == State::kDead) {
      workers_.erase(id);
    } else if (w->state == State::kRetired) {
      want();
    } else {
      lending_.lend_soon();
    }
  }
  dispatch();
}

void TaskPool::ended(PoolWorker& w, const PoolTaskPtr& task, const Result<Value>& result) {
  // If an argument failed, the worker is not to blame.
  const bool argument_failed = std::any_of(task->spec.deps.begin(), task->spec.deps.end(), failed);
  if (!result && result.error().code() == Code::kUnavailable && !argument_failed) {
    if (!task->cancelled) return lost(w, task, result.error());
    w.state = State::kDead;
    return finish(task, fail(call_cancelled(task->spec.name)));
  }
  const auto now = clock_.now();
  times_.took(task->spec.function, std::chrono::duration<double>(now - task->sent).count());
  w.last_ended = now;
  if (!(result && result->raised() && task->spec.judge_raised && task->spec.retries != 0 && !task->cancelled)) return finish(task, result);
  tasks_.judge(task, result);
  want();
}

// The first task that a dead worker loses is the one that it ran. Its other tasks, and one sent to a worker that had died idle, had not
// begun.
void TaskPool::lost(PoolWorker& w, const PoolTaskPtr& task, const Error& how) {
  const bool ran = std::exchange(w.state, State::kDead) != State::kDead && !task->refused;
  if (ran) {
    if (!task->use_retry()) return crashed(task, how);
    note(*task, how.reason() == kOutOfMemory ? kind_of_failure(how) : kWorkerDied);
  }
  task->take_back(ran);
  if (ran && tasks_.delay(task)) return;
  tasks_.insert(task, w.again++);
}

void TaskPool::crashed(const PoolTaskPtr& task, const Error& cause) {
  std::string how(cause.cause_message().empty() ? std::string_view(cause.message()) : cause.cause_message());
  // A node's report of the death begins "remote functions: f (pid 7) ...", where f may be another function than this task's. Leave that
  // name out.
  const auto pid = how.find(" (pid ");
  if (how.starts_with(kFunctionWorker) && pid != std::string::npos) how.replace(0, pid, "its process");
  if (task->attempts > 0) how += fmt::format(" (tried {} time{})", task->attempts, task->attempts == 1 ? "" : "s");
  finish(task, fail(unavailable("the worker that ran " + task->spec.name + " died: " + how)
                        .with_reason(cause.reason() == kOutOfMemory ? cause.reason() : "WorkerCrashed")
                        .with_hint(cause.hint())));
}

void TaskPool::judged(std::uint64_t id, bool again) {
  const auto [task, raised] = tasks_.take_judgement(id);
  if (task == nullptr) return;
  if (!again) return finish(task, raised.peek());
  (void)task->use_retry();
  note(*task, kRaisedFailure);
  task->take_back(true);
  tasks_.insert(task, 0);
  dispatch();
}

void TaskPool::fail_waiting(const Error& cause) {
  for (const auto& task : tasks_.take_ready()) finish(task, fail(cause));
}

void TaskPool::finish(const PoolTaskPtr& task, const Result<Value>& result) {
  note(*task, !result ? kind_of_failure(result.error()) : result->raised() ? kRaisedFailure : std::string_view());
  task->promise.set(result);
}

// ---- cancellation

void TaskPool::cancel(const ValueFuture& result, CancelHow how) {
  if (result.ready()) return;
  if (const PoolTaskPtr unsent = tasks_.remove(result)) return finish(unsent, fail(call_cancelled(unsent->spec.name)));
  for (auto& [id, w] : workers_.all()) {
    for (const auto& task : w.in_flight) {
      if (task->promise.future() == result) return cancel_sent(id, w, PoolTaskPtr(task), how);
    }
  }
}

// A worker runs its tasks in order: the first one runs, and those behind it have not begun. So `force` ends the worker only for the first.
void TaskPool::cancel_sent(ActorId id, PoolWorker& w, const PoolTaskPtr& task, CancelHow how) {
  task->cancelled = true;
  const auto attempt = task->attempt;
  how.force = how.force && w.in_flight.front() == task;
  if (how.force) {
    // The tasks behind it had not begun, and wait again once the worker has ended.
    w.state = State::kDead;
    w.in_flight.pop_front();
    condemned_.push_back(id);
    if (w.in_flight.empty()) workers_.erase(id);
    want();
  }
  cancel_(attempt, how);
  if (how.force) {
    finish(task, fail(call_cancelled(task->spec.name)));
    dispatch();
  }
}

void TaskPool::cancel_children(CallKey parent, CancelHow how) {
  std::vector<ValueFuture> children;
  const auto add = [&](const PoolTask& task) {
    if (task.spec.parent == parent) children.push_back(task.promise.future());
  };
  tasks_.each([&](const PoolTask& task, TaskState) {
    add(task);
    return true;
  });
  for (const auto& [id, w] : workers_.all()) {
    for (const auto& task : w.in_flight) add(*task);
  }
  for (const auto& child : children) cancel(child, how);
}

// ---- inspection

void TaskPool::note(const PoolTask& task, std::string_view failure) {
  if (book_ == nullptr) return;
  const auto number = task_number(task.number, task.worker ? task.attempts - 1 : task.attempts);
  book_->over({number, self_, task.worker, book_->name(task.spec.method, task.spec.name), task.sent, clock_.now(), failure});
}

std::uint64_t TaskPool::report(std::vector<TaskReport>& out, std::size_t limit) const {
  const std::size_t before = out.size();
  tasks_.each([&](const PoolTask& task, TaskState state) {
    if (out.size() >= limit) return false;
    out.push_back({task_number(task.number, task.attempts), self_, {}, task.spec.method, task.spec.name, state, 0, 0, {}});
    return true;
  });
  return tasks_.size() - (out.size() - before);
}

void TaskPool::count(CallBook::Counts& counts) const {
  if (book_ == nullptr) return;
  tasks_.each([&](const PoolTask& task, TaskState state) {
    counts.note(state, *book_, book_->name(task.spec.method, task.spec.name));
    return true;
  });
}

}  // namespace shoal::actors
