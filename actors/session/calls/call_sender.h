// Sends the calls that can be sent, in the order of each actor's queue. Loop thread only.
//
// While a call is sent, a callback may set a future and thereby allow sends to other actors. The outermost flush() makes these sends in a
// loop, so that long chains need no deep stack. Values that exceed one message are sent in portions before their call, over the same
// connection.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "actors/session/calls/actor_links.h"
#include "actors/session/calls/targets.h"
#include "actors/session/references/references.h"

namespace shoal::actors {

// Counts received references for this process, and sent ones for their receivers.
struct ValueCounts {
  References* references = nullptr;  // null: nothing is counted
  ValueMemory* memory = nullptr;     // where large received values are put
  WorkerId self;
  NodeId node;

  void received(Result<Value>& value) const;
  void sending(const Value& value, const TargetState& to) const;
  // Several results of a call may be parts of one shared memory. Copies such parts into memories of their own, since a descriptor passes on
  // the whole memory.
  void make_whole(std::span<const Value> values, bool local) const;
};

class CallSender {
 public:
  // All arguments outlive this object.
  CallSender(Targets& targets, ActorLinks& links, const CallNotes& notes, const ValueCounts& counts)
      : targets_(targets), links_(links), notes_(notes), counts_(counts) {}

  ~CallSender() { *alive_ = false; }

  // Sends the call at once, or queues it. The actor is not dead.
  void add(Target& target, UnsentCall&& call);
  // Sends what can be sent. Inside of another flush(), the sends follow when that one is done.
  void flush(ActorId id, Target& target);
  // flush() for each actor at this endpoint.
  void flush_at(const std::string& endpoint);
  // Fails a call that left the queue and was not sent.
  void fail_unsent(const Target& target, const UnsentCall& call, const Error& cause);
  // Removes a sent call whose answer has arrived. Returns nullopt if the call has failed before.
  std::optional<SentCalls::Answered> answered(Target& target, std::uint64_t number) { return target.sent.take(number, spare_); }

 private:
  ActorLink* open_link(const Target& target) { return target.state.takes_calls() ? links_.open(target.state.endpoint()) : nullptr; }
  void flush_now(Target& target);
  void flush_others();
  void send(Target& target, ActorLink& link, UnsentCall&& call);
  // Moves the call at `at` to the front of the queue and sends portions of its values. Returns true once all portions before the call are
  // sent.
  Result<bool> send_portions(Target& target, ActorLink& link, std::size_t at);
  // Makes the receiver discard the portions that were sent for this call, which itself will not follow.
  void discard_portions(const Target& target, const UnsentCall& call);

  Targets& targets_;
  ActorLinks& links_;
  const CallNotes& notes_;
  const ValueCounts& counts_;
  std::deque<ActorId> to_flush_;
  bool flushing_ = false;
  std::uint64_t next_ = 1;  // number of the next sent call
  SentCalls::Spare spare_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
