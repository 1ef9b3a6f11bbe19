// The pools of remote functions of this process. Only while the loop is owned, unless noted.
//
// The session closes with its pools: their tasks fail then, and callers may keep a closed pool.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/session/call_book.h"
#include "actors/session/calls/actor_calls.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/tasks/task_pool.h"

namespace shoal::actors {

class TaskPools {
 public:
  // `calls` makes the calls of the pools until close(). Their ended tasks are noted in `book`.
  TaskPools(SessionLoop& loop, HeadClient& head, ActorCalls& calls, CallBook& book, const Identity& self, runtime::Duration retry_delay);
  TaskPools(const TaskPools&) = delete;
  TaskPools& operator=(const TaskPools&) = delete;

  struct Kind {
    bool spreads = false;  // tasks go to nodes in turn
    bool lends = false;    // its workers hold CPUs, which others may use while they are idle
  };
  // `wanted` is called on the loop when the pool's take_wants has something new. Any thread.
  std::shared_ptr<TaskPool> make(std::function<void()> wanted, Kind kind);
  bool any_open() const;
  void cancel(const ValueFuture& result, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // Tasks without a worker, for inspection: as TaskPool.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  void count(CallBook::Counts& counts) const;
  void close();

 private:
  void lend(ActorId worker);
  void resume(ActorId worker, const std::function<void(bool)>& done);

  SessionLoop& loop_;
  HeadClient& head_;
  ActorCalls& calls_;
  CallBook& book_;
  const Identity& self_;
  const runtime::Duration retry_delay_;
  std::uint64_t next_task_ = std::uint64_t{1} << kPoolTaskBits;  // all pools number their tasks together
  std::vector<std::shared_ptr<TaskPool>> pools_;
};

}  // namespace shoal::actors
