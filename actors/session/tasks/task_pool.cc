#include "actors/session/tasks/task_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "actors/cluster/function_worker.h"

namespace shoal::actors {

namespace {

constexpr std::size_t kMaxFunctions = 10'000;                         // functions with known durations
constexpr std::chrono::seconds kShortestPause(1), kLongestPause(30);  // after a worker that could not be made

Error left() { return cancelled("this process left the cluster"); }

double seconds(runtime::Duration d) { return std::chrono::duration<double>(d).count(); }

bool failed(const ValueFuture& f) { return f.ready() && (!f.peek() || f.peek()->raised()); }

}  // namespace

TaskPool::TaskPool(runtime::Clock& clock, CallActor call, CancelCall cancel, std::function<void()> wanted, Options options)
    : clock_(clock), call_(std::move(call)), cancel_(std::move(cancel)), wanted_(std::move(wanted)), options_(options) {}

void TaskPool::close() {
  if (std::exchange(closed_, true)) return;
  *alive_ = false;
  for (runtime::Timer* t : {&turn_over_, &delay_over_, &lend_timer_, &resume_timer_}) *t = {};  // their loop may end before this pool
  std::vector<std::pair<ItemPtr, Result<Value>>> ended;
  for (const auto& item : std::exchange(waiting_, {})) ended.emplace_back(item, fail(left()));
  for (const auto& [n, item] : std::exchange(blocked_, {})) ended.emplace_back(item, fail(left()));
  for (const auto& [until, item] : std::exchange(delayed_, {})) ended.emplace_back(item, fail(left()));
  for (const auto& [n, judged] : std::exchange(judging_, {})) ended.emplace_back(judged.first, judged.second.peek());
  for (const auto& [id, w] : std::exchange(workers_, {})) {
    for (const auto& item : w.in_flight) ended.emplace_back(item, fail(left()));
  }
  for (auto& [item, result] : ended) item->promise.set(std::move(result));
}

ValueFuture TaskPool::submit(Task task) {
  auto item = std::make_shared<Item>();
  item->task = std::move(task);
  auto future = item->promise.future();
  if (closed_) {
    item->promise.set(fail(left()));
    return future;
  }
  if (next_task_ != nullptr) item->number = (*next_task_)++;
  for (const auto& d : item->task.deps) item->missing += !d.ready();
  if (item->missing == 0) {
    waiting_.push_back(std::move(item));
    dispatch();
    return future;
  }
  const std::uint64_t number = next_++;
  blocked_[number] = item;
  for (const auto& d : item->task.deps) {
    if (d.ready()) continue;
    d.then([this, alive = alive_, number](const Result<Value>&) {
      if (!*alive) return;
      const auto it = blocked_.find(number);
      if (it == blocked_.end() || --it->second->missing > 0) return;
      waiting_.push_back(std::move(it->second));
      blocked_.erase(it);
      dispatch();
    });
  }
  return future;
}

void TaskPool::add(ActorId id, const ValueFuture& made, NodeId node) {
  if (closed_) return;
  workers_[id].idle_since = clock_.now();
  workers_[id].node = node;
  made.then([this, alive = alive_, id](const Result<Value>& result) {
    if (!*alive) return;
    const auto it = workers_.find(id);
    if (it == workers_.end()) return;
    if (result && !result->raised()) {
      it->second.made = true;
      if (node_) it->second.node = node_(id);
      it->second.made_at = it->second.idle_since = clock_.now();
      pause_ = {};
      lend_later(options_.lend_after);
    } else {
      workers_.erase(it);
      if (!result && result.error().reason() == "Unschedulable") {
        fail_waiting(Error(result.error()).with_reason("TaskUnschedulable"));
      } else if (has_another()) {
        pause();
      } else if (!waiting_.empty()) {
        const ItemPtr first = waiting_.front();
        if (first->task.retries == 0) {
          waiting_.pop_front();
          crashed(first, result ? unavailable("it could not be started") : result.error());
        } else if (first->task.retries > 0) {
          --first->task.retries;
        }
      }
    }
    dispatch();
  });
}

// Handlers of results may call this again, so it loops instead of recursing.
void TaskPool::dispatch() {
  again_ = true;
  if (std::exchange(dispatching_, true)) return;
  while (std::exchange(again_, false)) dispatch_now();
  dispatching_ = false;
}

void TaskPool::dispatch_now() {
  while (!waiting_.empty()) {
    const double takes = expected(waiting_.front()->task.function);
    const auto best = choose(takes);
    if (best == workers_.end() || (node_ && keeps_turn(best->second))) break;
    if (best->second.cpus != Cpus::kHeld) {
      const auto asked = std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.cpus == Cpus::kAsked; });
      if (static_cast<std::size_t>(asked) >= waiting_.size()) break;
      resume(best->first, best->second);
      if (node_) break;  // the turn stays with this node
      continue;
    }
    if (node_) turns_[best->second.node] = next_turn_++;
    const ItemPtr item = std::move(waiting_.front());
    waiting_.pop_front();
    item->expected = takes;
    start(best->first, best->second, item);
  }
  if (!waiting_.empty() && workers_.size() < options_.max_workers) want();
}

TaskPool::Workers::iterator TaskPool::choose(double takes) {
  const double pipelined = seconds(options_.pipelined);
  auto best = workers_.end();
  for (auto it = workers_.begin(); it != workers_.end(); ++it) {
    const Worker& w = it->second;
    if (!w.made || w.retired || w.dead || w.cpus == Cpus::kAsked) continue;
    if (w.cpus == Cpus::kRefused && clock_.now() < w.ask_after) continue;
    if (!w.in_flight.empty() && (w.expected + takes > pipelined || w.in_flight.size() >= options_.max_in_flight)) continue;
    if (best == workers_.end() || is_better(w, best->second)) best = it;
  }
  return best;
}

bool TaskPool::is_better(const Worker& one, const Worker& other) const {
  const auto [turn, others] = node_ ? std::pair(turn_of(one.node), turn_of(other.node)) : std::pair<std::uint64_t, std::uint64_t>();
  if (turn != others) return turn < others;
  if (one.cpus != other.cpus) return one.cpus == Cpus::kHeld;
  return one.in_flight.size() < other.in_flight.size();
}

void TaskPool::resume(ActorId id, Worker& worker) {
  worker.cpus = Cpus::kAsked;
  lending_.resume(id, [this, alive = alive_, id](bool has) {
    if (*alive) resumed(id, has);
  });
}

void TaskPool::resumed(ActorId id, bool has) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;
  Worker& w = it->second;
  w.cpus = has ? Cpus::kHeld : Cpus::kRefused;
  if (has) {
    w.pause = {};
    w.idle_since = clock_.now();
    lend_later(options_.lend_after);
  } else {
    w.pause = std::clamp(2 * w.pause, options_.resume_pause, options_.longest_resume_pause);
    w.ask_after = clock_.now() + w.pause;
    resume_later();
  }
  dispatch();
}

void TaskPool::resume_later() {
  const auto now = clock_.now();
  std::optional<runtime::TimePoint> next;
  for (const auto& [id, w] : workers_) {
    if (w.cpus == Cpus::kRefused && w.ask_after > now) next = std::min(next.value_or(w.ask_after), w.ask_after);
  }
  if (!next) return;
  resume_timer_ = clock_.after(*next - now, [this, alive = alive_] {
    if (!*alive) return;
    dispatch();
    resume_later();
  });
}

void TaskPool::lend_later(runtime::Duration delay) {
  if (!lending_.lend || std::exchange(lends_later_, true)) return;
  lend_timer_ = clock_.after(delay, [this, alive = alive_] {
    if (*alive) lend_idle();
  });
}

void TaskPool::lend_idle() {
  lends_later_ = false;
  std::optional<runtime::Duration> next;
  for (auto& [id, w] : workers_) {
    if (!w.made || w.retired || w.dead || w.cpus != Cpus::kHeld || !w.in_flight.empty()) continue;
    const auto left = w.idle_since + options_.lend_after - clock_.now();
    if (left > runtime::Duration::zero()) {
      next = std::min(next.value_or(left), left);
      continue;
    }
    w.cpus = Cpus::kLent;
    lending_.lend(id);
  }
  if (next) lend_later(*next);
}

std::uint64_t TaskPool::turn_of(NodeId node) const {
  const auto it = turns_.find(node);
  return it == turns_.end() ? 0 : it->second;
}

bool TaskPool::keeps_turn(const Worker& chosen) {
  const std::uint64_t turn = turn_of(chosen.node);
  std::optional<runtime::TimePoint> until;
  for (const auto& [id, w] : workers_) {
    if (w.made || !w.node || turn_of(w.node) >= turn) continue;
    until = std::max(until.value_or(w.idle_since), w.idle_since);
  }
  const auto left = until ? *until + options_.turn_kept - clock_.now() : runtime::Duration::zero();
  if (left <= runtime::Duration::zero()) return false;
  turn_over_ = clock_.after(left, [this, alive = alive_] {
    if (*alive) dispatch();
  });
  return true;
}

void TaskPool::pause() {
  pause_ = std::clamp<runtime::Duration>(2 * pause_, kShortestPause, kLongestPause);
  wants_after_ = clock_.now() + pause_;
}

// When spreading: another worker can run the tasks, although one could not be made.
bool TaskPool::has_another() const {
  return node_ &&
         std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.made && !w.second.dead && !w.second.retired; });
}

std::size_t TaskPool::num_starting() const {
  return static_cast<std::size_t>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    const Worker& w = entry.second;
    const bool stuck = w.node && clock_.now() - w.idle_since > options_.turn_kept;  // its node has no room any more
    return !w.made && !stuck;
  }));
}

std::vector<NodeId> TaskPool::next_nodes(std::vector<NodeId> roomy) const {
  const std::size_t starting = num_starting(), wanted = waiting_.size() + 1;
  if (starting >= wanted || clock_.now() < wants_after_) return {};
  std::set<NodeId> there;
  for (const auto& [id, w] : workers_) {
    if (!w.retired && !w.dead) there.insert(w.node);
  }
  std::erase_if(roomy, [&](NodeId n) { return there.contains(n); });
  std::stable_sort(roomy.begin(), roomy.end(), [&](NodeId a, NodeId b) { return turn_of(a) < turn_of(b); });
  roomy.resize(std::min(roomy.size(), wanted - starting));
  return roomy;
}

// In seconds. Unknown functions count as long.
double TaskPool::expected(std::uint64_t function) const {
  const auto it = seconds_.find(function);
  return it == seconds_.end() ? 1e9 : it->second;
}

void TaskPool::start(ActorId id, Worker& worker, const ItemPtr& item) {
  item->sent = clock_.now();
  worker.in_flight.push_back(item);
  worker.expected += item->expected;
  if (item->task.max_calls > 0 && ++worker.calls[item->task.function] >= item->task.max_calls) worker.retired = true;
  Call call;
  call.actor = id;
  call.method = item->task.method;
  call.args = item->task.args;
  call.task = task_number(item->number, item->attempts++);
  if (item->task.name != item->task.method) call.function = {item, &item->task.name};
  item->worker = id;
  item->attempt = call_(std::move(call), item->task.deps);
  item->refused = item->attempt.ready();
  // Captures the item weakly, since the item owns the attempt.
  item->attempt.then([this, alive = alive_, id, sent = std::weak_ptr<Item>(item)](const Result<Value>& result) {
    if (!*alive) return;
    if (const ItemPtr item = sent.lock()) done(id, item, result);
  });
}

void TaskPool::done(ActorId id, const ItemPtr& item, const Result<Value>& result) {
  const auto it = workers_.find(id);
  if (it == workers_.end()) return;
  Worker& w = it->second;
  const auto now = clock_.now();
  if (std::erase(w.in_flight, item) == 0) return;  // cancelled by force
  item->sent = std::max(item->sent, w.last_done);  // it began when the one before it ended
  w.expected = w.in_flight.empty() ? 0 : w.expected - item->expected;
  // A failed argument is no failure of the function.
  const bool argument_failed = std::any_of(item->task.deps.begin(), item->task.deps.end(), failed);
  if (!result && result.error().code() == Code::kUnavailable && !argument_failed && item->cancelled) {
    w.dead = true;
    finish(item, fail(call_cancelled(item->task.name)));
  } else if (!result && result.error().code() == Code::kUnavailable && !argument_failed) {
    lost(w, item, result.error());
  } else {
    const double took = seconds(now - item->sent);
    if (seconds_.size() > kMaxFunctions) seconds_.clear();  // relearned quickly
    const auto [known, first] = seconds_.try_emplace(item->task.function, took);
    if (!first) known->second += 0.2 * (took - known->second);
    w.last_done = now;
    if (result && result->raised() && item->task.judge_raised && item->task.retries != 0 && !item->cancelled) {
      const std::uint64_t number = next_++;
      const runtime::Promise<Value> raised;
      raised.set(result);
      judging_[number] = {item, raised.future()};
      unjudged_.push_back(number);
      want();
    } else {
      finish(item, result);
    }
  }
  if (w.in_flight.empty()) {
    w.idle_since = now;
    if (w.dead) {
      workers_.erase(it);
    } else if (w.retired) {
      want();
    } else {
      lend_later(options_.lend_after);
    }
  }
  dispatch();
}

// The first task that a dead worker loses is the one that it ran. The others, and a task sent after an idle worker died, had not begun.
void TaskPool::lost(Worker& w, const ItemPtr& item, const Error& how) {
  if (!std::exchange(w.dead, true) && !item->refused) {
    if (item->task.retries == 0) return crashed(item, how);
    if (item->task.retries > 0) --item->task.retries;
    note(*item, how.reason() == kOutOfMemory ? kind_of_failure(how) : kWorkerDied, clock_.now());
    take_back(*item, true);
    if (options_.retry_delay > runtime::Duration::zero()) return delay(item);
  } else {
    take_back(*item, false);
  }
  const auto at = std::min(w.again++, waiting_.size());
  waiting_.insert(waiting_.begin() + static_cast<std::ptrdiff_t>(at), item);
}

void TaskPool::delay(const ItemPtr& item) {
  delayed_.emplace_back(clock_.now() + options_.retry_delay, item);
  if (delayed_.size() == 1) end_delays();
}

// All delays are equal, so the first in the queue ends first.
void TaskPool::end_delays() {
  bool over = false;
  const auto now = clock_.now();
  while (!delayed_.empty() && delayed_.front().first <= now) {
    waiting_.push_back(std::move(delayed_.front().second));
    delayed_.pop_front();
    over = true;
  }
  if (!delayed_.empty()) {
    delay_over_ = clock_.after(delayed_.front().first - now, [this, alive = alive_] {
      if (*alive) end_delays();
    });
  }
  if (over) dispatch();
}

void TaskPool::crashed(const ItemPtr& item, const Error& cause) {
  std::string how(cause.cause_message().empty() ? std::string_view(cause.message()) : cause.cause_message());
  // A node reports such a process as "remote functions: f (pid 7) was killed", where f may be another function.
  const auto pid = how.find(" (pid ");
  if (how.starts_with(kFunctionWorker) && pid != std::string::npos) how.replace(0, pid, "its process");
  if (item->attempts > 0) how += fmt::format(" (tried {} time{})", item->attempts, item->attempts == 1 ? "" : "s");
  finish(item, fail(unavailable("the worker that ran " + item->task.name + " died: " + how)
                        .with_reason(cause.reason() == kOutOfMemory ? cause.reason() : "WorkerCrashed")
                        .with_hint(cause.hint())));
}

void TaskPool::want() {
  if (!std::exchange(reported_, true)) wanted_();
}

void TaskPool::give_back(runtime::Duration lease) {
  const auto over = clock_.now() - lease;
  Worker* oldest = nullptr;
  bool idle = false;
  for (auto& [id, w] : workers_) {
    if (!w.made || w.retired || w.dead || w.made_at > over || w.cpus != Cpus::kHeld) continue;
    if (w.in_flight.empty()) w.retired = idle = true;
    if (oldest == nullptr || w.made_at < oldest->made_at) oldest = &w;
  }
  if (!idle && oldest != nullptr) oldest->retired = true;
}

TaskPool::Wants TaskPool::take_wants(runtime::Duration idle) {
  reported_ = false;
  Wants out;
  out.empty = workers_.empty();
  out.alone = std::all_of(workers_.begin(), workers_.end(), [&](const auto& w) { return is_out(w.second); });
  const std::size_t starting = num_starting();
  for (auto& [id, w] : workers_) {
    if (w.dead || !w.in_flight.empty()) continue;
    const bool nothing_to_do = waiting_.empty() && (w.made || blocked_.empty());
    if (w.retired || (clock_.now() - w.idle_since > idle && nothing_to_do)) out.ended.push_back(id);
  }
  for (const ActorId id : out.ended) workers_.erase(id);
  out.condemned = std::exchange(condemned_, {});
  out.starting = starting > 0;
  const auto resumes = [&](const Worker& w) { return w.cpus != Cpus::kHeld && !w.retired && !w.dead && !is_out(w); };
  const auto all = std::count_if(workers_.begin(), workers_.end(), [&](const auto& w) { return resumes(w.second); });
  const std::size_t to_resume = std::min(waiting_.size(), static_cast<std::size_t>(all));
  const std::size_t more = std::min(waiting_.size() - to_resume, options_.max_workers - std::min(options_.max_workers, workers_.size()));
  out.workers = more > starting && clock_.now() >= wants_after_ ? more - starting : 0;
  for (const std::uint64_t n : std::exchange(unjudged_, {})) {
    const auto it = judging_.find(n);
    if (it != judging_.end()) out.raised.push_back({n, it->second.first->task.function, it->second.second});
  }
  return out;
}

void TaskPool::judged(std::uint64_t id, bool again) {
  const auto it = judging_.find(id);
  if (it == judging_.end()) return;
  const auto [item, raised] = std::move(it->second);
  judging_.erase(it);
  if (!again) return finish(item, raised.peek());
  if (item->task.retries > 0) --item->task.retries;
  note(*item, kRaisedFailure, clock_.now());
  take_back(*item, true);
  waiting_.push_front(item);
  dispatch();
}

void TaskPool::cancel(const ValueFuture& result, CancelHow how) {
  if (result.ready() || cancel_unsent(result)) return;
  for (auto& [id, w] : workers_) {
    for (const auto& item : w.in_flight) {
      if (item->promise.future() == result) return cancel_sent(id, w, ItemPtr(item), how);
    }
  }
}

bool TaskPool::cancel_unsent(const ValueFuture& result) {
  const auto is_it = [&](const ItemPtr& item) { return item->promise.future() == result; };
  ItemPtr found;
  if (const auto it = std::find_if(waiting_.begin(), waiting_.end(), is_it); it != waiting_.end()) {
    found = *it;
    waiting_.erase(it);
  }
  for (auto it = blocked_.begin(); !found && it != blocked_.end(); ++it) {
    if (!is_it(it->second)) continue;
    found = it->second;
    blocked_.erase(it);
    break;
  }
  for (auto it = delayed_.begin(); !found && it != delayed_.end(); ++it) {
    if (!is_it(it->second)) continue;
    found = it->second;
    delayed_.erase(it);
    break;
  }
  for (auto it = judging_.begin(); !found && it != judging_.end(); ++it) {
    if (!is_it(it->second.first)) continue;
    found = it->second.first;
    judging_.erase(it);
    break;
  }
  if (found) finish(found, fail(call_cancelled(found->task.name)));
  return found != nullptr;
}

// A worker runs its tasks in order: the first one is running, and those behind it have not begun.
void TaskPool::cancel_sent(ActorId id, Worker& w, const ItemPtr& item, CancelHow how) {
  item->cancelled = true;
  const auto attempt = item->attempt;
  how.force = how.force && w.in_flight.front() == item;
  if (how.force) {
    w.dead = true;  // the others had not begun, and wait again after its end
    w.in_flight.pop_front();
    condemned_.push_back(id);
    if (w.in_flight.empty()) workers_.erase(id);
    want();
  }
  cancel_(attempt, how);
  if (how.force) {
    finish(item, fail(call_cancelled(item->task.name)));
    dispatch();
  }
}

void TaskPool::cancel_children(CallKey parent, CancelHow how) {
  std::vector<ValueFuture> children;
  const auto add = [&](const ItemPtr& item) {
    if (item->task.parent == parent) children.push_back(item->promise.future());
  };
  for (const auto& item : waiting_) add(item);
  for (const auto& [n, item] : blocked_) add(item);
  for (const auto& [until, item] : delayed_) add(item);
  for (const auto& [n, judged] : judging_) add(judged.first);
  for (const auto& [id, w] : workers_) std::for_each(w.in_flight.begin(), w.in_flight.end(), add);
  for (const auto& child : children) cancel(child, how);
}

void TaskPool::fail_waiting(const Error& cause) {
  for (const auto& item : std::exchange(waiting_, {})) finish(item, fail(cause));
}

void TaskPool::note(const Item& item, std::string_view failure, runtime::TimePoint now) {
  if (book_ == nullptr) return;
  const auto number = task_number(item.number, item.worker ? item.attempts - 1 : item.attempts);
  book_->over({number, self_, item.worker, book_->name(item.task.method, item.task.name), item.sent, now, failure});
}

void TaskPool::take_back(Item& item, bool began) {
  if (!began) --item.attempts;
  item.worker = {};
  item.sent = {};
}

void TaskPool::finish(const ItemPtr& item, const Result<Value>& result) {
  note(*item, !result ? kind_of_failure(result.error()) : result->raised() ? kRaisedFailure : std::string_view(), clock_.now());
  item->promise.set(result);
}

std::uint64_t TaskPool::tell(std::vector<TaskReport>& out, std::size_t limit) const {
  const std::size_t before = out.size();
  const auto add = [&](const ItemPtr& item, TaskState state) {
    if (out.size() >= limit) return;
    out.push_back({task_number(item->number, item->attempts), self_, {}, item->task.method, item->task.name, state, 0, 0, {}});
  };
  for (const auto& item : waiting_) {
    if (out.size() >= limit) break;
    add(item, TaskState::kPendingPlace);
  }
  for (const auto& [n, item] : blocked_) add(item, TaskState::kPendingArguments);
  for (const auto& [until, item] : delayed_) add(item, TaskState::kPendingPlace);
  for (const auto& [n, judged] : judging_) add(judged.first, TaskState::kPendingPlace);
  return waiting_.size() + blocked_.size() + delayed_.size() + judging_.size() - (out.size() - before);
}

void TaskPool::count(CallBook::Counts& counts) const {
  if (book_ == nullptr) return;
  const auto note = [&](const ItemPtr& item, TaskState state) {
    counts.note(state, *book_, book_->name(item->task.method, item->task.name));
  };
  for (const auto& item : waiting_) note(item, TaskState::kPendingPlace);
  for (const auto& [n, item] : blocked_) note(item, TaskState::kPendingArguments);
  for (const auto& [until, item] : delayed_) note(item, TaskState::kPendingPlace);
  for (const auto& [n, judged] : judging_) note(judged.first, TaskState::kPendingPlace);
}

}  // namespace shoal::actors
