// The tasks of a pool of remote functions, and the pool's options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/value/call.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

// A task as it is submitted.
struct FunctionTask {
  std::string name;            // the function's, for errors
  std::string method = "run";  // the worker's
  std::uint64_t function = 0;  // identifies the function
  Value args;
  std::vector<ValueFuture> deps;
  std::int32_t retries = 0;     // after deaths of its worker; below 0: unlimited
  bool judge_raised = false;    // a raised exception may allow another attempt
  std::uint32_t max_calls = 0;  // calls of the function per worker; 0: unlimited
  CallKey parent;               // the call of this process in which it was made
};

// The same in the pool, until it is finished.
struct PoolTask {
  FunctionTask spec;
  runtime::Promise<Value> promise;
  std::size_t missing = 0;  // references that are not ready
  double expected = 0;      // seconds; once it is sent
  runtime::TimePoint sent;
  ValueFuture attempt;  // once it is sent
  bool cancelled = false;
  bool refused = false;  // the worker was dead before it was sent there
  std::uint64_t number = 0;
  std::int32_t attempts = 0;  // begun, or at a worker
  ActorId worker;             // the worker that has it

  // Prepares it for another attempt, or for the same one if it had not begun.
  void take_back(bool began) {
    if (!began) --attempts;
    worker = {};
    sent = {};
  }
  // Uses one of its retries; false: none is left.
  bool use_retry() {
    if (spec.retries == 0) return false;
    if (spec.retries > 0) --spec.retries;
    return true;
  }
};
using PoolTaskPtr = std::shared_ptr<PoolTask>;

struct TaskPoolOptions {
  std::size_t max_workers = 4096;
  runtime::Duration pipelined = std::chrono::milliseconds(2);
  std::size_t max_in_flight = 64;                                // per worker
  runtime::Duration turn_kept = std::chrono::seconds(5);         // for a node whose worker is being made
  runtime::Duration retry_delay = {};                            // before another attempt after a worker's death
  runtime::Duration lend_after = std::chrono::milliseconds(10);  // idle time after which a worker's CPUs are lent
  // Before a worker's lent CPUs are requested again, at first; doubled each time. After the longest pause another worker is wanted, which
  // waits for its turn.
  runtime::Duration resume_pause = std::chrono::milliseconds(5), longest_resume_pause = std::chrono::milliseconds(80);
};

}  // namespace shoal::actors
