// The queue of one actor: calls that are not sent yet, in the order in which their caller made them. Loop thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "actors/value/call.h"
#include "runtime/loop/future.h"

namespace shoal::actors {

struct UnsentCall {
  Call call;
  std::vector<ValueFuture> deps;  // values that are not in `call` yet
  runtime::Promise<Value> promise;
  std::int32_t tries = 0;  // lost attempts
  // For a call sent in portions: the number of values sent before it, and their connection.
  std::size_t before = 0;
  std::uint64_t connection = 0;
  std::size_t seen = 0;  // ready deps at the last look, so that each is looked at once

  bool all_ready() {
    while (seen < deps.size() && deps[seen].ready()) ++seen;
    return seen >= deps.size();
  }
  bool waits_for_arguments() const;
  // True if the values exceed one message, once all are ready, or some are sent already.
  bool in_portions(bool local) const { return before > 0 || (call.deps.size() + deps.size() > 0 && is_too_much(local)); }
  // Moves the values of the arguments into the call. The first argument that failed or raised, if there is one, and no value then.
  const Result<Value>* resolve();

 private:
  bool is_too_much(bool local) const;
};

class UnsentCalls {
 public:
  using Calls = std::deque<UnsentCall>;
  bool empty() const { return calls_.empty(); }
  std::size_t size() const { return calls_.size(); }
  // The bytes of small arguments.
  std::size_t bytes() const { return bytes_; }
  const Calls& all() const { return calls_; }
  UnsentCall& operator[](std::size_t at) { return calls_[at]; }

  // At the end; a repeated call goes before those that may wait for its result.
  void add(UnsentCall&& call);
  // A lost call goes to the front.
  void requeue(UnsentCall&& call);
  UnsentCall take(std::size_t at);
  Calls take_all();
  // The position of the call with this answer; size(): none.
  std::size_t find(const ValueFuture& answer) const;
  // The position of the next call that may be sent, from `at` on; size(): none.
  std::size_t next(std::size_t at);
  void move_to_front(std::size_t at);

  // `any`: a call that waits for a reference does not hold up those behind it.
  void in_any_order(bool any) { any_order_ = any; }
  bool any_order() const { return any_order_; }
  // While `on`, calls that were lost before stay.
  void delay_lost(bool on) { lost_wait_ = on; }

 private:
  Calls calls_;
  std::size_t bytes_ = 0;
  bool any_order_ = false;
  bool lost_wait_ = false;
};

}  // namespace shoal::actors
