// The tasks of a pool that no worker has. Each is in one of four places. It waits for a worker, for a reference among its arguments, or for
// the end of the delay before its next attempt. Or its function raised an exception, and it waits for the owner's judgement whether to try
// again. Loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/protocol/wire/inspection.h"
#include "actors/session/tasks/pool_task.h"

namespace shoal::actors {

class WaitingTasks {
 public:
  struct Judgement {
    std::uint64_t id = 0;
    std::uint64_t function = 0;
    ValueFuture raised;
  };
  // `ready` is called when more tasks wait for a worker.
  WaitingTasks(runtime::Clock& clock, runtime::Duration retry_delay, std::function<void()> ready)
      : clock_(clock), retry_delay_(retry_delay), ready_(std::move(ready)) {}
  ~WaitingTasks() { *alive_ = false; }

  // ---- tasks that wait for a worker, in their order
  bool none_ready() const { return waiting_.empty(); }
  std::size_t num_ready() const { return waiting_.size(); }
  PoolTask& first() const { return *waiting_.front(); }
  PoolTaskPtr take_first();
  PoolTaskPtr take_last();
  std::deque<PoolTaskPtr> take_ready();
  // Lets a task wait for a worker, behind the first `place` tasks.
  void insert(PoolTaskPtr task, std::size_t place);

  // ---- tasks that wait for something else
  bool none_blocked() const { return blocked_.empty(); }
  // Adds a new task. It waits for its references, if any are not ready, and then for a worker.
  void add(PoolTaskPtr task);
  // Lets a task whose worker died wait for the retry delay. Returns false, without effect, if that is zero.
  bool delay(const PoolTaskPtr& task);
  // Lets a task that raised wait for take_judgement().
  void judge(PoolTaskPtr task, const Result<Value>& raised);
  // The judgements that are needed and were not returned before.
  std::vector<Judgement> new_judgements();
  // Removes a task that waits for this judgement, and returns it with what it raised. Null if the task was cancelled.
  std::pair<PoolTaskPtr, ValueFuture> take_judgement(std::uint64_t id);

  // ---- all tasks that no worker has
  bool empty() const { return size() == 0; }
  std::size_t size() const { return waiting_.size() + blocked_.size() + delayed_.size() + judging_.size(); }
  // Removes the task whose result this is, and returns it; null if it is not here.
  PoolTaskPtr remove(const ValueFuture& result);
  // Removes all tasks. Those that wait for a judgement come with what they raised.
  std::vector<std::pair<PoolTaskPtr, std::optional<ValueFuture>>> take_all();
  // Calls see(task, state) for each task, until it returns false.
  template <class F>
  void each(F see) const {
    for (const auto& task : waiting_) {
      if (!see(*task, TaskState::kPendingPlace)) return;
    }
    for (const auto& [n, task] : blocked_) {
      if (!see(*task, TaskState::kPendingArguments)) return;
    }
    for (const auto& [until, task] : delayed_) {
      if (!see(*task, TaskState::kPendingPlace)) return;
    }
    for (const auto& [n, judged] : judging_) {
      if (!see(*judged.first, TaskState::kPendingPlace)) return;
    }
  }

 private:
  void end_delays();

  runtime::Clock& clock_;
  const runtime::Duration retry_delay_;
  const std::function<void()> ready_;
  std::deque<PoolTaskPtr> waiting_;
  std::map<std::uint64_t, PoolTaskPtr> blocked_;                    // tasks that wait for references, by number
  std::deque<std::pair<runtime::TimePoint, PoolTaskPtr>> delayed_;  // retries with the ends of their delays, the earliest in front
  runtime::Timer delay_over_;
  std::map<std::uint64_t, std::pair<PoolTaskPtr, ValueFuture>> judging_;  // tasks that raised, with what they raised, by number
  std::vector<std::uint64_t> unjudged_;                                   // judgements that new_judgements() has not returned yet
  std::uint64_t next_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
