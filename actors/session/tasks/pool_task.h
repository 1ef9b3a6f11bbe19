// The tasks of a pool of remote functions, and the pool's options.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/value/call.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

// A task as user code submits it.
struct FunctionTask {
  std::string name;            // name of the function, for errors
  std::string method = "run";  // the worker's method that runs the function
  std::uint64_t function = 0;  // number that identifies the function
  Value args;
  std::vector<ValueFuture> deps;
  std::int32_t retries = 0;   // attempts allowed after deaths of its worker; below 0: unlimited
  bool judge_raised = false;  // if the function raises, a judgement decides about another attempt
  // After this many calls of the function a worker ends; 0: never.
  std::uint32_t max_calls = 0;
  CallKey parent;  // the call that runs in this process and made the task
};

// A submitted task, from submit() until it is finished.
struct PoolTask {
  FunctionTask spec;
  runtime::Promise<Value> promise;
  std::size_t missing = 0;  // references among its arguments that are not ready
  // Expected duration in seconds, set when the task is sent.
  double expected = 0;
  runtime::TimePoint sent;
  ValueFuture attempt;  // answer of the present attempt, set when the task is sent
  bool cancelled = false;
  bool refused = false;  // the worker was found dead when the task was sent to it
  std::uint64_t number = 0;
  std::int32_t attempts = 0;  // attempts that have begun, or that a worker has
  ActorId worker;             // the worker that has the task

  // Prepares the task for its next attempt, or for the same attempt again if that had not begun.
  void take_back(bool began) {
    if (!began) --attempts;
    worker = {};
    sent = {};
  }
  // Uses up one of the task's retries. Returns false if no retry is left.
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
  std::size_t max_in_flight = 64;                                // tasks that one worker has at once
  runtime::Duration turn_kept = std::chrono::seconds(5);         // how long a node keeps its turn while its worker is made
  runtime::Duration retry_delay = {};                            // pause before a task whose worker died is sent again
  runtime::Duration lend_after = std::chrono::milliseconds(10);  // idle time after which a worker's CPUs are lent
  // The pause after a refused request for a worker's lent CPUs: the first one, which doubles with each refusal, and the longest. After the
  // longest, another worker is wanted, which waits for its turn at the head.
  runtime::Duration resume_pause = std::chrono::milliseconds(5), longest_resume_pause = std::chrono::milliseconds(80);
};

}  // namespace shoal::actors
