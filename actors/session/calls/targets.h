// The actors that this process calls: their states, their calls, and what inspection and the session ask about them. Loop thread only.
//
// The last `max_dead` dead actors are kept with the cause of their death; older ones are forgotten.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/session/call_book.h"
#include "actors/session/calls/sent_calls.h"
#include "actors/session/calls/target_state.h"
#include "actors/session/calls/unsent_calls.h"

namespace shoal::actors {

// Notes failures of calls that no other process can report.
struct CallNotes {
  runtime::Clock& clock;
  CallBook* book = nullptr;
  WorkerId self = {};

  // Except for calls of a pool, which notes them itself.
  void failed(ActorId actor, std::uint64_t task, std::uint32_t name, const Error& cause) const;
  void failed(const UnsentCall& call, const Error& cause) const { failed(call.call.actor, call.call.task, name_of(call.call), cause); }
  std::uint32_t name_of(const Call& call) const { return book != nullptr ? book->name(call.method, call.function_name()) : 0; }
};

struct Target {
  TargetState state;
  UnsentCalls unsent;
  SentCalls sent;
  runtime::Timer grace;       // see TargetAction
  runtime::Timer delay_over;  // for lost calls
  bool to_flush = false;      // listed with the sender
  // Values to keep: until `unanswered` calls are answered, and until the round after that.
  std::vector<std::shared_ptr<const void>> kept, kept_next;
  std::size_t unanswered = 0;
};

class Targets {
 public:
  // `notes` outlives this.
  Targets(const CallNotes& notes, std::size_t max_dead) : notes_(notes), max_dead_(max_dead) {}

  void expect(ActorId actor, const std::string& class_name);
  // Null when it is not known.
  Target* find(ActorId actor);
  const Target* find(ActorId actor) const { return const_cast<Targets*>(this)->find(actor); }
  std::map<ActorId, Target>& all() { return targets_; }
  const std::map<ActorId, Target>& all() const { return targets_; }
  // For loops that run callbacks, which may add and remove actors.
  std::vector<ActorId> ids() const;
  std::map<ActorId, Target>::node_type remove(ActorId actor);
  void died(ActorId actor) { dead_.push_back(actor); }

  // True if an actor that is not dead is at this endpoint.
  bool any_at(const std::string& endpoint) const;

  bool knows(ActorId actor) const { return targets_.contains(actor); }
  // The actors that are not dead.
  std::vector<ActorId> expected() const;
  // The node and process of the actor, once known.
  NodeId node(ActorId actor) const;
  WorkerId worker(ActorId actor) const;
  bool alive(ActorId actor) const;
  // The cause of an actor's death; null while it is not dead.
  const Error* cause(ActorId actor) const;
  // True if its death was forgotten after many later ones, or it may never have been known.
  bool forgotten(ActorId actor) const { return forgot_ && !knows(actor); }
  // True if it has no process, or waits for arguments, and no user's call waits for it.
  bool waits_for_nobody(ActorId actor) const;
  // True if its constructor waits for arguments.
  bool waits_for_arguments(ActorId actor) const;

  // True if a call is unanswered, other than the runtime's own (kOurs).
  bool any_open() const;
  bool any_open(ActorId actor) const;
  // True if `result` is that of an unanswered call.
  bool pending(const ValueFuture& result) const;
  // The answers of unanswered calls that were made within `parent`.
  std::vector<ValueFuture> children(CallKey parent) const;
  // Appends queued and unanswered calls, up to `limit` rows in all; returns the number omitted.
  std::uint64_t report(std::vector<TaskReport>& out, std::size_t limit) const;
  // The same calls, counted.
  void count(CallBook::Counts& counts) const;

 private:
  const CallNotes& notes_;
  const std::size_t max_dead_;
  std::map<ActorId, Target> targets_;
  std::deque<ActorId> dead_;  // in the order of their deaths
  bool forgot_ = false;       // a dead actor was removed
};

}  // namespace shoal::actors
