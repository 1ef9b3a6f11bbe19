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
  std::vector<ValueFuture> deps;  // arguments whose values are not in `call` yet
  runtime::Promise<Value> promise;
  std::int32_t tries = 0;  // attempts of this call that were lost
  // For a call that is sent in portions: the number of its values sent so far, and the connection that they went over.
  std::size_t before = 0;
  std::uint64_t connection = 0;
  std::size_t seen = 0;  // leading deps that were found ready, so that each is checked once

  bool all_ready() {
    while (seen < deps.size() && deps[seen].ready()) ++seen;
    return seen >= deps.size();
  }
  bool waits_for_arguments() const;
  // True if the call is sent in portions: some are sent already, or its values exceed one message. To be asked once all deps are ready.
  bool in_portions(bool local) const { return before > 0 || (call.deps.size() + deps.size() > 0 && is_too_much(local)); }
  // Moves the values of all arguments into the call, and returns null. If an argument failed or raised, returns the first such one instead.
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

  // Adds a call at the end. A repeated call goes before all new ones, since they may wait for its result.
  void add(UnsentCall&& call);
  // Puts a lost call at the front.
  void requeue(UnsentCall&& call);
  UnsentCall take(std::size_t at);
  Calls take_all();
  // The position of the call that this future answers; size() if there is none.
  std::size_t find(const ValueFuture& answer) const;
  // The position of the first call from `at` on that may be sent; size() if there is none.
  std::size_t next(std::size_t at);
  void move_to_front(std::size_t at);

  // `any`: calls may overtake a call that waits for a reference.
  void in_any_order(bool any) { any_order_ = any; }
  bool any_order() const { return any_order_; }
  // While `on`, next() passes over calls that were lost before, since these wait for the retry delay.
  void delay_lost(bool on) { lost_wait_ = on; }

 private:
  Calls calls_;
  std::size_t bytes_ = 0;
  bool any_order_ = false;
  bool lost_wait_ = false;
};

}  // namespace shoal::actors
