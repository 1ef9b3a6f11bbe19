// Mode::kThreads: calls run on as many threads as may run at once. The main thread passes each call to a free one.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "actors/api/worker/concurrent_calls.h"

namespace shoal::actors::api {

class ThreadExecution final : public Execution {
 public:
  explicit ThreadExecution(ExecutionParts parts);
  ~ThreadExecution() override;  // joins the threads, once their calls end
  Incoming run_until_release() override;
  // Fails a call that waits. Only marks one that runs: its method learns of the cancellation when it polls is_cancelled().
  void cancel(CallKey call) override { (void)calls_.cancel(call); }

 private:
  void serve();

  const CallRunner runner_;
  ConcurrentCalls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Turn> given_;
  bool over_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shoal::actors::api
