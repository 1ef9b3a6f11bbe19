#include "actors/session/clients/task_pools.h"

#include <algorithm>

namespace shoal::actors {

TaskPools::TaskPools(SessionLoop& loop, HeadClient& head, ActorCalls& calls, CallBook& book, const Identity& self,
                     runtime::Duration retry_delay)
    : loop_(loop), head_(head), calls_(calls), book_(book), self_(self), retry_delay_(retry_delay) {}

std::shared_ptr<TaskPool> TaskPools::make(std::function<void()> wanted, Kind kind) {
  return loop_.own([&] {
    const auto call = [this](Call c, std::vector<ValueFuture> deps) { return calls_.call(std::move(c), std::move(deps)); };
    const auto cancel = [this](const ValueFuture& result, CancelHow how) { calls_.cancel(result, how); };
    auto pool = std::make_shared<TaskPool>(*loop_.clock(), call, cancel, std::move(wanted), TaskPool::Options{.retry_delay = retry_delay_});
    if (kind.spreads) pool->spread([this](ActorId worker) { return calls_.actors().node(worker); });
    if (kind.lends) {
      pool->lend({.lend = [this](ActorId worker) { lend(worker); },
                  .resume = [this](ActorId worker, std::function<void(bool)> on_answer) { resume(worker, on_answer); }});
    }
    pool->note_in(book_, self_.worker, next_task_);
    pools_.push_back(pool);
    return pool;
  });
}

// Lends an idle worker's CPUs to others until it has work.
void TaskPools::lend(ActorId worker) {
  (void)head_.link().notify(Method::kWorkerBlocked, body(to_bytes(WorkerBlocked{calls_.actors().worker(worker), true})));
}

// Requests the lent CPUs of a worker back. Without a head they are granted at once, since no others get them.
void TaskPools::resume(ActorId worker, const std::function<void(bool)>& on_answer) {
  if (!head_.link().connected()) return loop_.post([on_answer] { on_answer(true); });
  head_.call(Method::kWorkerBlocked, to_bytes(WorkerBlocked{calls_.actors().worker(worker), false}),
             [on_answer](const Result<runtime::Message>& reply) { on_answer(reply || reply.error().code() != Code::kResourceExhausted); });
}

bool TaskPools::any_open() const {
  return std::any_of(pools_.begin(), pools_.end(), [](const auto& pool) { return pool->any_open(); });
}

void TaskPools::cancel(const ValueFuture& result, CancelHow how) {
  for (const auto& pool : pools_) pool->cancel(result, how);
}

void TaskPools::cancel_children(CallKey parent, CancelHow how) {
  for (const auto& pool : pools_) pool->cancel_children(parent, how);
}

std::uint64_t TaskPools::report(std::vector<TaskReport>& out, std::size_t limit) const {
  std::uint64_t left_out = 0;
  for (const auto& pool : pools_) left_out += pool->report(out, limit);
  return left_out;
}

void TaskPools::count(CallBook::Counts& counts) const {
  for (const auto& pool : pools_) pool->count(counts);
}

void TaskPools::close() {
  for (const auto& pool : pools_) pool->close();
}

}  // namespace shoal::actors
