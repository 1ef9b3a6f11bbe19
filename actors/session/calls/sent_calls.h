// The calls of one actor that are sent and unanswered, with copies of those that may be sent again. Loop thread only.
//
// Every call passes here: the nodes of answered calls are reused, so that a call needs no allocation of its own.
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
  std::unique_ptr<Call> again;  // a copy to send again, if allowed
  bool unmade_only = false;     // the copy is only for the case that the call is lost before its actor is made
  std::int32_t tries = 0;       // lost attempts
  std::uint64_t request = 0;    // its number on the connection
  CallKey parent;
  std::uint64_t task = 0;  // with the attempt
  std::uint32_t name = 0;  // in the book
};

class SentCalls {
 public:
  using Calls = std::map<std::uint64_t, SentCall>;  // by number
  // Nodes of answered calls, for all actors.
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

  // `number` exceeds all earlier ones.
  void add(std::uint64_t number, SentCall call, Spare& spare);
  // Removes an answered call. Its promise, task and name; nullopt: it failed already.
  struct Answered {
    runtime::Promise<Value> promise;
    std::uint64_t task = 0;
    std::uint32_t name = 0;
  };
  std::optional<Answered> take(std::uint64_t number, Spare& spare);
  Calls take_all();
  SentCall* find(const ValueFuture& answer);
  const SentCall* find(const ValueFuture& answer) const { return const_cast<SentCalls*>(this)->find(answer); }
  // Drops the copies for the case that the actor was not made.
  void drop_copies();

  // All calls are lost: those that may be sent again go back into the queue in their order. `begun`: they may have begun, so each that is
  // sent again has one try less. `ended` sees each lost attempt, latest first.
  struct Lost {
    std::vector<runtime::Promise<Value>> failed;  // in their order
    bool tried_again = false;
  };
  Lost requeue(UnsentCalls& queue, bool begun, const std::function<void(const SentCall&)>& ended);

 private:
  Calls calls_;
};

}  // namespace shoal::actors
