// An actor that runs several calls at once: CallScheduler decides which of them begin. They run on threads (CallThreads) or, if methods
// are coroutines, on the actor's own loop (CallLoop), like Python's async actors.
#pragma once

#include <asio/cancellation_signal.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "actors/api/context/context.h"
#include "actors/session/references/actor_host.h"
#include "runtime/loop/task.h"

namespace shoal::actors::api {

struct Turn {
  std::size_t group = 0;
  Incoming incoming;
};

// The calls that wait until their concurrency group has room. A full group refuses its own calls, and does not affect other groups. Only
// while the session's loop is owned.
class CallScheduler {
 public:
  // `sizes`: concurrent calls per group; the first is for methods without one. `all`: bounds of waiting calls, shared equally by the
  // groups. One call may wait, whatever its size.
  explicit CallScheduler(const std::vector<std::size_t>& sizes, CallQueue::Options all = {})
      : groups_(sizes.size()), max_waiting_(all.max_waiting / sizes.size()), max_bytes_(all.max_bytes / sizes.size()) {
    for (std::size_t i = 0; i < sizes.size(); ++i) groups_[i].free = sizes[i];
  }
  // Refuses a call with ResourceExhausted if its group is full.
  void add(Turn turn);
  // The call that begins now: the first added among those allowed.
  std::optional<Turn> next();
  void done(std::size_t group) { ++groups_[group].free; }
  // Removes a call that has not begun.
  std::optional<Incoming> cancel(CallKey call);

 private:
  struct Waiting {
    std::uint64_t number = 0;
    Incoming incoming;
  };
  struct Group {
    std::size_t free = 0;
    std::deque<Waiting> waiting;
    std::size_t bytes = 0;  // bytes of the waiting calls' small arguments
  };
  std::vector<Group> groups_;
  const std::size_t max_waiting_, max_bytes_;
  std::uint64_t next_ = 1;
};

// Threads that run calls. The caller begins at most as many calls as there are free threads.
class CallThreads {
 public:
  CallThreads(std::size_t count, const std::function<void(Turn)>& run);
  void begin(Turn turn);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Turn> given_;
  std::vector<std::thread> threads_;  // they end with the process
};

class CallLoop {
 public:
  using Start = std::function<Task<Value>(const Incoming& incoming)>;
  using Done = std::function<void(Turn turn, Result<Value> result)>;
  // Both functions are called in the thread of this loop.
  CallLoop(Context& context, Start start, Done done);
  ~CallLoop();
  // Any thread.
  void begin(Turn turn);
  // A running coroutine ends at its await. Any thread.
  void cancel(CallKey call);

 private:
  struct Running {
    explicit Running(Turn t) : turn(std::move(t)) {}
    Turn turn;
    asio::cancellation_signal stop;
    bool cancelled = false;
  };
  void begin_now(const std::shared_ptr<Running>& running);

  Context& context_;
  const Start start_;
  const Done done_;
  asio::io_context loop_;
  const asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<Running>> running_;  // by key; only on the loop
  std::thread thread_;
};

}  // namespace shoal::actors::api
