// Sends the calls that can be sent, in the order of each actor's queue. Loop thread only.
//
// A future that is set meanwhile may allow sends to any actor. The outermost call makes these in a loop, so that long chains need no
// stack. Values that exceed one message are sent in portions before their call, over the same connection.
#pragma once

#include <cstdint>
#include <deque>
#include <span>

#include "actors/session/calls/actor_links.h"
#include "actors/session/calls/targets.h"
#include "actors/session/references.h"

namespace shoal::actors {

// Counts references in sent and received values, for this process and the receivers.
struct ValueCounts {
  References* references = nullptr;  // null: not counted
  ValueMemory* memory = nullptr;     // for large values
  WorkerId self;
  NodeId node;

  void received(Result<Value>& value) const;
  void sending(const Value& value, const TargetState& to) const;
  // Parts of a result get memories of their own, since a descriptor is sent for the whole memory.
  void make_whole(std::span<const Value> values, bool local) const;
};

class CallSender {
 public:
  // All outlive this.
  CallSender(Targets& targets, ActorLinks& links, const CallNotes& notes, const ValueCounts& counts)
      : targets_(targets), links_(links), notes_(notes), counts_(counts) {}

  ~CallSender() { *alive_ = false; }

  // Queues the call of an actor that is not dead, or sends it at once.
  void add(Target& target, UnsentCall&& call);
  // Sends what can be sent; within a call of this, when that returns.
  void flush(ActorId id, Target& target);
  // The same for all actors at this endpoint.
  void flush_at(const std::string& endpoint);
  // A call that left the queue, and is not sent, fails.
  void fail_unsent(const Target& target, const UnsentCall& call, const Error& cause);
  // Removes a sent call whose answer has arrived; nullopt: it failed already.
  std::optional<SentCalls::Answered> answered(Target& target, std::uint64_t number) { return target.sent.take(number, spare_); }

 private:
  ActorLink* open_link(const Target& target) { return target.state.takes_calls() ? links_.open(target.state.endpoint()) : nullptr; }
  void flush_now(Target& target);
  void flush_others();
  void send(Target& target, ActorLink& link, UnsentCall&& call);
  // Sends the portions before the call at `at`, which becomes the queue's first; true once all are sent.
  Result<bool> send_portions(Target& target, ActorLink& link, std::size_t at);
  // Makes the receiver discard the portions sent for this call.
  void discard_portions(const Target& target, const UnsentCall& call);

  Targets& targets_;
  ActorLinks& links_;
  const CallNotes& notes_;
  const ValueCounts& counts_;
  std::deque<ActorId> to_flush_;
  bool flushing_ = false;
  std::uint64_t next_ = 1;  // sent call
  SentCalls::Spare spare_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
