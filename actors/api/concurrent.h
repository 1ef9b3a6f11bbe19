// An actor that runs several calls at once: which of them begin (Turns), and where: on threads (CallThreads) or, when it has methods that
// are coroutines, on one loop of its own (CallLoop), as Python's async actors do.
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

#include "actors/api/context.h"
#include "actors/session/actor_host.h"
#include "runtime/loop/task.h"

namespace shoal::actors::api {

struct Turn {
  std::size_t group = 0;
  Incoming incoming;
};

// Calls wait here until their group has room. Each group has its share of what may wait: one that is full has no others wait behind it, nor
// fail. Only while the session's loop is owned.
class Turns {
 public:
  // How many of each group may be under way at once; the first is of methods that are in none. `all`: what may wait in all of them
  // together, of which each has the same share; one call may, whatever its size.
  explicit Turns(const std::vector<std::size_t>& sizes, CallQueue::Options all = {})
      : groups_(sizes.size()), max_waiting_(all.max_waiting / sizes.size()), max_bytes_(all.max_bytes / sizes.size()) {
    for (std::size_t i = 0; i < sizes.size(); ++i) groups_[i].free = sizes[i];
  }
  // ResourceExhausted for a call for which its group has no room.
  void add(Turn turn);
  // One that begins now: of those that may, the one that was added first.
  std::optional<Turn> next();
  void done(std::size_t group) { ++groups_[group].free; }
  // One that has not begun never will.
  std::optional<Incoming> cancel(CallKey call);

 private:
  struct Waiting {
    std::uint64_t number = 0;
    Incoming incoming;
  };
  struct Group {
    std::size_t free = 0;
    std::deque<Waiting> waiting;
    std::size_t bytes = 0;  // of their small arguments
  };
  std::vector<Group> groups_;
  const std::size_t max_waiting_, max_bytes_;
  std::uint64_t next_ = 1;
};

// Who gives them calls gives as many as there are threads without one.
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
  // Both are called on the loop's thread.
  CallLoop(Context& context, Start start, Done done);
  ~CallLoop();
  // Any thread.
  void begin(Turn turn);
  // A coroutine that runs ends where it awaits something. Any thread.
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
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::shared_ptr<Running>> running_;  // by key; the loop's
  std::thread thread_;
};

}  // namespace shoal::actors::api
