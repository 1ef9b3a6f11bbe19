// The calls of one actor that are sent and unanswered, with copies of those that may be sent again. Loop thread only.
//
// Every call passes here, so the map nodes of answered calls are reused, and a call needs no allocation of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "actors/session/calls/unsent_calls.h"

namespace shoal::actors {

struct SentCall {
  runtime::Promise<Value> promise;
  std::unique_ptr<Call> again;  // a copy of the call, if it may be sent again
  bool unmade_only = false;     // the copy may be sent only if the process ends before it has made its actor
  std::int32_t tries = 0;       // attempts of this call that were lost
  std::uint64_t request = 0;    // number of the request on its connection
  CallKey parent;
  std::uint64_t task = 0;  // Call::task, which includes the attempt
  std::uint32_t name = 0;  // number of its method's and function's name in the call book
};

class SentCalls {
 public:
  using Calls = std::map<std::uint64_t, SentCall>;  // by number, in the order of sending
  // Map nodes of answered calls, to be used again by any actor's calls.
  class Spare {
   private:
    friend class SentCalls;
    static constexpr std::size_t kMax = 4096;
    std::vector<Calls::node_type> nodes_;
  };

  bool empty() const { return calls_.empty(); }
  std::size_t size() const { return calls_.size(); }
  bool contains(std::uint64_t number) const { return calls_.contains(number); }
  const Calls& all() const { return calls_; }

  // `number` exceeds the numbers of all calls added before.
  void add(std::uint64_t number, SentCall call, Spare& spare);
  // The result of take(), which removes an answered call; nullopt if the call has failed before.
  struct Answered {
    runtime::Promise<Value> promise;
    std::uint64_t task = 0;
    std::uint32_t name = 0;
  };
  std::optional<Answered> take(std::uint64_t number, Spare& spare);
  Calls take_all();
  SentCall* find(const ValueFuture& answer);
  const SentCall* find(const ValueFuture& answer) const { return const_cast<SentCalls*>(this)->find(answer); }
  // Drops the copies that may be sent only if the actor was not made (unmade_only).
  void drop_copies();

  // Handles the loss of all calls. Those that may be sent again go back into the queue in their order; the others are in `failed`. `begun`:
  // the calls may have begun, so that sending one again uses a try. `ended` is called for each lost attempt, latest first.
  struct Lost {
    std::vector<runtime::Promise<Value>> failed;  // in the order in which the calls were sent
    bool tried_again = false;
  };
  Lost requeue(UnsentCalls& queue, bool begun, const std::function<void(const SentCall&)>& ended);

 private:
  Calls calls_;
};

}  // namespace shoal::actors
