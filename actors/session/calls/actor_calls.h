// Calls from this process to actors: an ordered queue per actor, a connection per actor process, and reports of their deaths.
//
// A call is queued until its actor lives, the references among its arguments are ready, and the socket has room. Calls behind it wait
// too, so that an actor receives each caller's calls in order. When an actor dies, its calls fail with the cause that its node or the
// head reports. A broken connection is not a death (docs/decisions/a-broken-connection-is-no-death.md). After cause_grace its calls fail as
// Unavailable/ActorUnavailable, and it is made again for queued ones. When an actor restarts, calls sent to it fail likewise, or are sent
// again first (max_task_retries). Calls to a process that ends before its actor is made are sent again, and no try is counted.
//
// target_state.h decides what becomes of an actor's calls. This class performs the decisions on the queues (unsent_calls.h), the sent
// calls (sent_calls.h), the connections (actor_links.h) and timers. Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/calls/actor_links.h"
#include "actors/session/calls/call_sender.h"
#include "actors/session/calls/targets.h"
#include "actors/session/streams.h"

namespace shoal::actors {

class ActorCalls final : public runtime::PeerHandler {
 public:
  struct Options {
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration cause_grace = std::chrono::milliseconds(600);  // after a connection broke, and before each reconnection
    runtime::Duration retry_delay = {};                              // before calls lost with a process are sent again
    runtime::Duration unreachable_after = std::chrono::seconds(30);  // after that queued calls fail, while reconnections go on
    std::size_t max_queued = 1 << 20;                                // unsent calls of one actor
    std::size_t max_queued_bytes = 1 << 30;                          // small arguments of those
    std::size_t high_water_bytes = 8 << 20;                          // per socket; further calls stay queued
    std::size_t max_dead = 10'000;                                   // dead actors whose cause is kept; the oldest are forgotten
  };

  ActorCalls(runtime::Clock& clock, runtime::Network& network, Options options);
  ~ActorCalls();
  // Counts references in sent and received values, for this process and the receivers. Both outlive this.
  void count_with(References& references, ValueMemory& memory, WorkerId self, NodeId node);
  // Notes failures that no other process can report. `book` outlives this.
  void note_in(CallBook& book) { notes_.book = &book; }

  // The actors that calls may be made on.
  const Targets& actors() const { return targets_; }
  // Adds an actor that the head will report on (updated). Calls may be made from now on.
  void expect(ActorId actor, const std::string& class_name) { targets_.expect(actor, class_name); }
  // Removes an actor that the head refused or did not confirm. Its calls fail with `cause`.
  void forget(ActorId actor, const Error& cause);
  // A report from the head.
  void updated(const ActorRow& row);
  // The head does not have this actor. It dies now or, if it is connected (the head restarted without its actors), with its connection.
  void unknown(ActorId actor, const Error& cause);
  // A report from the node: a process is gone, with its actors.
  void process_gone(WorkerId worker, const Error& cause);
  // No reports will come: actors without a connection die now with `cause`, the others when their connection breaks.
  void no_more_news(const Error& cause);
  // Reports come again.
  void news_again();
  // The head is gone: no actor restarts until news_again().
  void head_gone();

  // The future's value may be an exception that the method raised. NotFound for an actor that was never expected; ActorDied for one whose
  // death is forgotten.
  ValueFuture call(Call call, std::vector<ValueFuture> deps);
  // Items that calls yield.
  Streams& streams() { return streams_; }
  // The number for Call::task of all attempts of one call.
  std::uint64_t new_task() { return next_task_++; }
  // `any`: a call that waits for a reference does not hold up those behind it. No effect on an unknown actor.
  void in_any_order(ActorId actor, bool any);
  // An unsent call fails as Cancelled/TaskCancelled; for a sent one the actor's process is notified, and decides. No effect on others.
  void cancel(const ValueFuture& result, CancelHow how);
  // Cancels the calls made within `parent`.
  void cancel_children(CallKey parent);
  // Keeps `what` until every call made here on this actor so far is answered.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);

 private:
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_drained(runtime::Peer& peer) override;
  void on_answer(runtime::Peer& peer, runtime::CallTag tag, Result<runtime::Message> answer) override;

  // The event changes an actor's state, and what follows from it is done.
  void step(ActorId id, const TargetEvent& event);
  void perform(ActorId id, Target& target, const TargetAction& action);
  // The same event for all actors at this endpoint.
  void step_at(const std::string& endpoint, const TargetEvent& event);
  void link_failed(const std::string& endpoint, const Error& why);
  void lose_sent(ActorId id, Target& target, const TargetAction& action);
  void fail_calls(ActorId id, Target& target, const Error& cause);
  void keep_next(ActorId id, Target& target);

  runtime::Clock& clock_;
  const Options options_;
  CallNotes notes_{clock_};
  ValueCounts counts_;
  Targets targets_;
  ActorLinks links_;
  CallSender sender_;
  Streams streams_;
  Reports reports_ = Reports::kAll;
  std::optional<Error> no_reports_;  // the cause, with Reports::kNone
  std::uint64_t next_task_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
