// Mode::kLoop: calls run on a loop of the actor's own, in a thread of its own, where a coroutine's await lets others run. The main thread
// passes calls to that loop in order of arrival.
#pragma once

#include <asio/cancellation_signal.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "actors/api/worker/concurrent_calls.h"

namespace shoal::actors::api {

class LoopExecution final : public Execution {
 public:
  explicit LoopExecution(ExecutionParts parts);
  ~LoopExecution() override;
  Incoming run_until_release() override;
  // A running coroutine ends at its await.
  void cancel(CallKey call) override;

 private:
  struct Running {
    explicit Running(Turn t) : turn(std::move(t)) {}
    Turn turn;
    asio::cancellation_signal stop;
    bool cancelled = false;
  };
  // ---- in the thread of the loop ----
  void begin(const std::shared_ptr<Running>& running);
  void stop(CallKey call);

  const CallRunner runner_;
  ConcurrentCalls calls_;
  asio::io_context loop_;
  const asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<Running>> running_;  // by key; only in the thread of the loop
  std::thread thread_;
};

}  // namespace shoal::actors::api
