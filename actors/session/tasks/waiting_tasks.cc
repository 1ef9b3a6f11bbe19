#include "actors/session/tasks/waiting_tasks.h"

#include <algorithm>

namespace shoal::actors {

PoolTaskPtr WaitingTasks::take_first() {
  PoolTaskPtr out = std::move(waiting_.front());
  waiting_.pop_front();
  return out;
}

PoolTaskPtr WaitingTasks::take_last() {
  PoolTaskPtr out = std::move(waiting_.back());
  waiting_.pop_back();
  return out;
}

std::deque<PoolTaskPtr> WaitingTasks::take_ready() { return std::exchange(waiting_, {}); }

void WaitingTasks::insert(PoolTaskPtr task, std::size_t place) {
  const auto at = std::min(place, waiting_.size());
  waiting_.insert(waiting_.begin() + static_cast<std::ptrdiff_t>(at), std::move(task));
}

void WaitingTasks::add(PoolTaskPtr task) {
  for (const auto& d : task->spec.deps) task->missing += !d.ready();
  if (task->missing == 0) {
    waiting_.push_back(std::move(task));
    return ready_();
  }
  const std::uint64_t number = next_++;
  blocked_[number] = task;
  for (const auto& d : task->spec.deps) {
    if (d.ready()) continue;
    d.then([this, alive = alive_, number](const Result<Value>&) {
      if (!*alive) return;
      const auto it = blocked_.find(number);
      if (it == blocked_.end() || --it->second->missing > 0) return;
      waiting_.push_back(std::move(it->second));
      blocked_.erase(it);
      ready_();
    });
  }
}

bool WaitingTasks::delay(const PoolTaskPtr& task) {
  if (retry_delay_ <= runtime::Duration::zero()) return false;
  delayed_.emplace_back(clock_.now() + retry_delay_, task);
  if (delayed_.size() == 1) end_delays();
  return true;
}

// All delays have the same length, so the first in the queue is over first.
void WaitingTasks::end_delays() {
  bool over = false;
  const auto now = clock_.now();
  while (!delayed_.empty() && delayed_.front().first <= now) {
    waiting_.push_back(std::move(delayed_.front().second));
    delayed_.pop_front();
    over = true;
  }
  if (!delayed_.empty()) {
    delay_over_ = clock_.after(delayed_.front().first - now, [this] { end_delays(); });
  }
  if (over) ready_();
}

void WaitingTasks::judge(PoolTaskPtr task, const Result<Value>& raised) {
  const std::uint64_t number = next_++;
  const runtime::Promise<Value> promise;
  promise.set(raised);
  judging_[number] = {std::move(task), promise.future()};
  unjudged_.push_back(number);
}

std::vector<WaitingTasks::Judgement> WaitingTasks::new_judgements() {
  std::vector<Judgement> out;
  for (const std::uint64_t n : std::exchange(unjudged_, {})) {
    const auto it = judging_.find(n);
    if (it != judging_.end()) out.push_back({n, it->second.first->spec.function, it->second.second});
  }
  return out;
}

std::pair<PoolTaskPtr, ValueFuture> WaitingTasks::take_judgement(std::uint64_t id) {
  auto node = judging_.extract(id);
  return node.empty() ? std::pair<PoolTaskPtr, ValueFuture>() : std::move(node.mapped());
}

PoolTaskPtr WaitingTasks::remove(const ValueFuture& result) {
  PoolTaskPtr out;
  const auto remove_from = [&](auto& place, auto task_of) {
    const auto it = std::find_if(place.begin(), place.end(), [&](const auto& entry) { return task_of(entry)->promise.future() == result; });
    if (it == place.end()) return false;
    out = task_of(*it);
    place.erase(it);
    return true;
  };
  const auto second = [](const auto& entry) -> const PoolTaskPtr& { return entry.second; };
  (void)(remove_from(waiting_, [](const PoolTaskPtr& task) -> const PoolTaskPtr& { return task; }) || remove_from(blocked_, second) ||
         remove_from(delayed_, second) ||
         remove_from(judging_, [](const auto& entry) -> const PoolTaskPtr& { return entry.second.first; }));
  return out;
}

std::vector<std::pair<PoolTaskPtr, std::optional<ValueFuture>>> WaitingTasks::take_all() {
  std::vector<std::pair<PoolTaskPtr, std::optional<ValueFuture>>> out;
  delay_over_ = {};
  for (auto& task : std::exchange(waiting_, {})) out.emplace_back(std::move(task), std::nullopt);
  for (auto& [n, task] : std::exchange(blocked_, {})) out.emplace_back(std::move(task), std::nullopt);
  for (auto& [until, task] : std::exchange(delayed_, {})) out.emplace_back(std::move(task), std::nullopt);
  for (auto& [n, judged] : std::exchange(judging_, {})) out.emplace_back(std::move(judged.first), std::move(judged.second));
  return out;
}

}  // namespace shoal::actors
