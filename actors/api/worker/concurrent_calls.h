// The calls of an actor that runs several at once, on threads or on a loop: CallScheduler decides which of them begin, and ConcurrentCalls
// takes them from the actor's queue and answers them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/api/worker/execution.h"

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
  void end_call(std::size_t group) { ++groups_[group].free; }
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

class ConcurrentCalls {
 public:
  // Only while the loop is owned.
  explicit ConcurrentCalls(ExecutionParts parts);

  // The calls that may run at once, of all groups together.
  std::size_t max_running() const { return std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0}); }
  // As Execution::run_until_release. begin() passes a call to the thread that runs it. A release is returned once all other calls have
  // ended.
  Incoming run_until_release(const std::function<void(Turn)>& begin);
  // Answers a call that began. Any thread: the call's arguments are freed without owning the loop.
  void ended(Turn turn, Result<Value> result);
  // Fails a call that waits, and notes the cancellation of one that has begun. Returns true if it has begun. Only while the loop is owned.
  bool cancel(CallKey call);

 private:
  void add(Incoming incoming);
  std::optional<Turn> next();

  const CallRunner runner_;
  SessionLoop& loop_;
  CancelledCalls& cancelled_;
  const std::shared_ptr<CallQueue> queue_;
  const std::vector<std::size_t> sizes_;  // concurrent calls per group, as CallScheduler takes them

  // Only while the loop is owned.
  CallScheduler scheduler_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> begun_;  // calls that have begun, until they are answered
  std::deque<Incoming> releases_;
};

}  // namespace shoal::actors::api
