// Mode::kSerial: calls run one after the other on the main thread, which runs the session's loop between them.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "actors/api/worker/execution.h"

namespace shoal::actors::api {

class SerialExecution final : public Execution {
 public:
  explicit SerialExecution(ExecutionParts parts);
  Incoming run_until_release() override;
  void cancel(CallKey call) override;

 private:
  struct Ended {
    Incoming incoming;
    Result<Value> result;
  };
  // Answers the call that ended, and takes the next one, if there is one. Only while the loop is owned.
  std::optional<Incoming> next(std::optional<Ended>& ended);

  const CallRunner runner_;
  SessionLoop& loop_;
  CancelledCalls& cancelled_;
  const std::shared_ptr<CallQueue> queue_;
  std::deque<Incoming> early_;
  CallKey now_;  // the running call, until it is answered
};

}  // namespace shoal::actors::api
