// The actors that this process calls, with their states and calls, and queries for inspection and the session. Loop thread only.
//
// The last `max_dead` dead actors are kept with the cause of their death; older ones are forgotten.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/calls/sent_calls.h"
#include "actors/session/calls/target_state.h"
#include "actors/session/calls/unsent_calls.h"
#include "actors/session/references/call_book.h"

namespace shoal::actors {

// Enters into the call book the failures of calls that no other process can report.
struct CallNotes {
  runtime::Clock& clock;
  CallBook* book = nullptr;
  WorkerId self = {};

  // No effect for a call of a pool, which enters its failures itself.
  void failed(ActorId actor, std::uint64_t task, std::uint32_t name, const Error& cause) const;
  void failed(const UnsentCall& call, const Error& cause) const { failed(call.call.actor, call.call.task, name_of(call.call), cause); }
  std::uint32_t name_of(const Call& call) const { return book != nullptr ? book->name(call.method, call.function_name()) : 0; }
};

struct Target {
  TargetState state;
  UnsentCalls unsent;
  SentCalls sent;
  runtime::Timer grace;       // runs between kStartGrace and kStopGrace (TargetAction)
  runtime::Timer delay_over;  // runs while lost calls wait to be sent again
  bool to_flush = false;      // the sender's list to_flush_ contains it
  // Values that ActorCalls::keep_until_answered keeps: `kept` until `unanswered` calls have answers, `kept_next` for one more round.
  std::vector<std::shared_ptr<const void>> kept, kept_next;
  std::size_t unanswered = 0;
};

class Targets {
 public:
  // `notes` outlives this object.
  Targets(const CallNotes& notes, std::size_t max_dead) : notes_(notes), max_dead_(max_dead) {}

  void expect(ActorId actor, const std::string& class_name);
  // Null if this process does not call the actor.
  Target* find(ActorId actor);
  const Target* find(ActorId actor) const { return const_cast<Targets*>(this)->find(actor); }
  std::map<ActorId, Target>& all() { return targets_; }
  const std::map<ActorId, Target>& all() const { return targets_; }
  // For loops that run callbacks: these may add and remove actors.
  std::vector<ActorId> ids() const;
  std::map<ActorId, Target>::node_type remove(ActorId actor);
  void died(ActorId actor) { dead_.push_back(actor); }

  // True if an actor that is not dead is at this endpoint.
  bool any_at(const std::string& endpoint) const;

  bool knows(ActorId actor) const { return targets_.contains(actor); }
  // The actors that are not dead.
  std::vector<ActorId> expected() const;
  // The node and process of the actor; empty until a report names them.
  NodeId node(ActorId actor) const;
  WorkerId worker(ActorId actor) const;
  bool alive(ActorId actor) const;
  // The cause of an actor's death; null while it is not dead.
  const Error* cause(ActorId actor) const;
  // True if this process has no record of the actor, but has forgotten some dead actors: this one may be among them.
  bool forgotten(ActorId actor) const { return forgot_ && !knows(actor); }
  // True if no call of user code waits for the actor, and it either has no process or waits for its constructor's arguments.
  bool waits_for_nobody(ActorId actor) const;
  // True if the call of the actor's constructor waits for arguments.
  bool waits_for_arguments(ActorId actor) const;

  // True if a call is unanswered, not counting calls of the runtime itself (kOurs).
  bool any_open() const;
  bool any_open(ActorId actor) const;
  // True if `result` belongs to a call that is unanswered.
  bool pending(const ValueFuture& result) const;
  // The results of unanswered calls that were made within the call `parent`.
  std::vector<ValueFuture> children(CallKey parent) const;
  // Appends queued and unanswered calls, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  // Adds the numbers of queued and unanswered calls.
  void count(CallBook::Counts& counts) const;

 private:
  const CallNotes& notes_;
  const std::size_t max_dead_;
  std::map<ActorId, Target> targets_;
  std::deque<ActorId> dead_;  // oldest death first
  bool forgot_ = false;       // the record of a dead actor was removed
};

}  // namespace shoal::actors
