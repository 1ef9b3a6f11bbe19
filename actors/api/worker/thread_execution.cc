#include "actors/api/worker/thread_execution.h"

#include <utility>

namespace shoal::actors::api {

ThreadExecution::ThreadExecution(ExecutionParts parts) : runner_(parts.runner), calls_(std::move(parts)) {
  for (std::size_t i = 0; i < calls_.max_running(); ++i) threads_.emplace_back([this] { serve(); });
}

ThreadExecution::~ThreadExecution() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

Incoming ThreadExecution::run_until_release() {
  return calls_.run_until_release([this](Turn turn) {
    {
      const std::lock_guard lock(mutex_);
      given_.push_back(std::move(turn));
    }
    changed_.notify_one();
  });
}

void ThreadExecution::serve() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_ || !given_.empty(); });
    if (given_.empty()) return;
    Turn turn = std::move(given_.front());
    given_.pop_front();
    lock.unlock();
    auto result = runner_.run(turn.incoming);
    calls_.ended(std::move(turn), std::move(result));
  }
}

}  // namespace shoal::actors::api
