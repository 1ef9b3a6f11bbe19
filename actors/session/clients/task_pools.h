// The pools of remote functions of this process. Only while the loop is owned, unless noted.
//
// close() fails the tasks of all pools. Callers may keep a closed pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/session/calls/actor_calls.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/references/call_book.h"
#include "actors/session/tasks/task_pool.h"

namespace shoal::actors {

class TaskPools {
 public:
  // The pools make their calls through `calls` until close(), and enter ended tasks into `book`.
  TaskPools(SessionLoop& loop, HeadClient& head, ActorCalls& calls, CallBook& book, const Identity& self, runtime::Duration retry_delay);
  TaskPools(const TaskPools&) = delete;
  TaskPools& operator=(const TaskPools&) = delete;

  struct Kind {
    bool spreads = false;  // tasks go to nodes in turn
    bool lends = false;    // its workers hold CPUs, which other processes may use while the workers are idle
  };
  // Any thread. The pool calls `wanted` on the loop when TaskPool::take_wants() has something new for the pool's owner.
  std::shared_ptr<TaskPool> make(std::function<void()> wanted, Kind kind);
  bool any_open() const;
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // Appends tasks without a worker, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  void count(CallBook::Counts& counts) const;
  void close();

 private:
  void lend(ActorId worker);
  void resume(ActorId worker, const std::function<void(bool)>& on_answer);

  SessionLoop& loop_;
  HeadClient& head_;
  ActorCalls& calls_;
  CallBook& book_;
  const Identity& self_;
  const runtime::Duration retry_delay_;
  // The number of the next task. All pools number their tasks together.
  std::uint64_t next_task_ = std::uint64_t{1} << kPoolTaskBits;
  std::vector<std::shared_ptr<TaskPool>> pools_;
};

}  // namespace shoal::actors
