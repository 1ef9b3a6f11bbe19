// The client of actors' methods and of remote functions: the calls that this process makes, and their cancellation.
//
// close() fails open calls as Cancelled. Afterwards only by_actor(), cancel_children() and the reports may be called.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "actors/session/calls/actor_calls.h"
#include "actors/session/clients/task_pools.h"
#include "actors/session/link/head_client.h"
#include "actors/session/link/identity.h"
#include "actors/session/references/call_book.h"

namespace shoal::actors {

// How to cancel the call that makes a value: `answer` returns the call's future, and `on_cancel` runs just before the cancellation. Both
// run on the loop.
struct ToCancel {
  std::function<ValueFuture()> answer;
  std::function<void()> on_cancel;
};

class CallClient {
 public:
  // Notes in `book` the failures that no other process can report.
  CallClient(SessionLoop& loop, runtime::Network& network, HeadClient& head, CallBook& book, const Identity& self,
             runtime::Duration retry_delay);
  CallClient(const CallClient&) = delete;
  CallClient& operator=(const CallClient&) = delete;

  // ---- any thread ----
  // `task`: receives the call's new task number.
  ValueFuture call(Call call, std::vector<ValueFuture> deps, std::uint64_t* task = nullptr);
  // Splits the result of a call that returns `count` values into a future for each.
  std::vector<ValueFuture> split(const ValueFuture& whole, std::size_t count);
  // `any`: the actor's calls may overtake a call that waits for a reference. No effect on an unknown actor.
  void in_any_order(ActorId actor, bool any);
  // Keeps `what` until every call on this actor that was made by now has its answer.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);
  // Cancels a call: it fails as Cancelled/TaskCancelled, unless its answer comes first. No effect if it is answered, or not made by this
  // process. Returns InvalidArgument for `force` on an actor's method, which then goes on.
  Result<void> cancel(const ToCancel& what, CancelHow how);

  // ---- only while the loop is owned ----
  // As cancel(), for a caller that owns the loop, such as a handler.
  Result<void> cancel_now(const ToCancel& what, CancelHow how);
  void cancel_children(CallKey parent, CancelHow how);
  // A new number for Call::task, the same for all attempts of one call.
  std::uint64_t new_task() { return by_actor_->new_task(); }
  Streams& streams() { return by_actor_->streams(); }
  // True if calls made by this process are unanswered: their results would be lost with it.
  bool any_open() const;
  // True if calls of this process on this actor are unanswered.
  bool any_open(ActorId actor) const { return by_actor_ && by_actor_->actors().any_open(actor); }
  // Makes any_open() count `whole` as an open call until it is ready. `whole` is the result of several attempts, between which no call is
  // open.
  void note_open(const ValueFuture& whole);
  // Appends open calls and tasks for inspection, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  CallBook::Counts counts() const;

  TaskPools& pools() { return pools_; }
  // Null once closed.
  ActorCalls* by_actor() { return by_actor_.get(); }
  void close();

 private:
  SessionLoop& loop_;
  std::unique_ptr<ActorCalls> by_actor_;
  TaskPools pools_;
  const std::shared_ptr<std::size_t> num_open_ = std::make_shared<std::size_t>(0);  // futures of note_open() that are not ready
};

}  // namespace shoal::actors
