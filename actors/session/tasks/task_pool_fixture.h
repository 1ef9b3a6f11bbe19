// Fixture of the tests of pools. Its workers answer a task when a test calls answers().
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "actors/session/tasks/task_pool.h"
#include "runtime/sim/sim_world.h"

namespace shoal::actors {

using namespace std::chrono_literals;

inline Value text_value(const std::string& text, Value::Kind kind = Value::Kind::kResult) {
  return Value::make({std::as_bytes(std::span(text))}, kind).value();
}

inline std::string outcome(const ValueFuture& f) {
  if (!f.ready()) return "pending";
  if (!f.peek()) return f.peek().error().reason();
  const auto head = f.peek()->pieces().at(0);
  return (f.peek()->raised() ? "raised " : "") + std::string(reinterpret_cast<const char*>(head.data()), head.size());
}

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
  // The running tasks with their workers, in the order of sending: "1:a 2:b".
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
  // Records a cancelled task: "a", or "a by force".
  void cancel(const ValueFuture& attempt, CancelHow how) {
    for (const auto& r : running_) {
      if (r.promise.future() == attempt) cancelled_.push_back(r.what + (how.force ? " by force" : ""));
    }
  }
  std::vector<std::string> cancelled_;
  std::set<ActorId> gone_;  // workers that have ended, which the pool has not detected
  explicit TaskPoolTest(TaskPool::Options options = {})
      : pool_(
            world_.clock(), [this](Call call, std::vector<ValueFuture>) { return run(std::move(call)); },
            [this](const ValueFuture& attempt, CancelHow how) { cancel(attempt, how); }, [this] { ++reported_; }, options) {}
  TaskPool pool_;
};

}  // namespace shoal::actors
