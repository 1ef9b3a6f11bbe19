// Calls from this process to actors: an ordered queue per actor, a connection per actor process, and reports of their deaths.
//
// A call is queued until its actor lives, the references among its arguments are ready, and the socket has room. Calls behind it wait too,
// so that an actor receives each caller's calls in order. When an actor dies, its calls fail with the cause that its node or the head
// reports. A broken connection is not a death (docs/decisions/a-broken-connection-is-no-death.md). After cause_grace, calls sent on it fail
// as Unavailable/ActorUnavailable, and the connection is made again for queued calls. When an actor restarts, calls sent to its earlier
// process fail likewise, or are sent again first (max_task_retries). Calls to a process that ends before its actor is made are sent again,
// and no try is counted.
//
// target_state.h decides about an actor's calls when its state changes. This class performs the decisions on the queues (unsent_calls.h),
// the sent calls (sent_calls.h), the connections (actor_links.h) and timers. Loop thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/session/calls/actor_links.h"
#include "actors/session/calls/call_sender.h"
#include "actors/session/calls/targets.h"
#include "actors/session/references/streams.h"

namespace shoal::actors {

class ActorCalls final : public runtime::PeerHandler {
 public:
  struct Options {
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    // Time in which a report may still explain why a connection broke; then calls fail, and the connection is made again.
    runtime::Duration cause_grace = std::chrono::milliseconds(600);
    runtime::Duration retry_delay = {};  // before calls lost with a process are sent again
    // How long a connection stays broken before queued calls fail; attempts to connect go on.
    runtime::Duration unreachable_after = std::chrono::seconds(30);
    std::size_t max_queued = 1 << 20;        // unsent calls of one actor
    std::size_t max_queued_bytes = 1 << 30;  // small arguments of the unsent calls of one actor
    std::size_t high_water_bytes = 8 << 20;  // bytes queued in a socket, above which further calls stay in their queue
    std::size_t max_dead = 10'000;           // dead actors whose cause is kept; the oldest are forgotten
  };

  ActorCalls(runtime::Clock& clock, runtime::Network& network, Options options);
  ~ActorCalls();
  // Received references are counted for this process, sent ones for their receivers. All arguments outlive this object.
  void count_with(References& references, ValueMemory& memory, WorkerId self, NodeId node);
  // Enters into `book` the failures that no other process can report. `book` outlives this object.
  void note_in(CallBook& book) { notes_.book = &book; }

  // The actors that calls may be made on.
  const Targets& actors() const { return targets_; }
  // Adds an actor that the head will report on (updated). Calls may be made from now on.
  void expect(ActorId actor, const std::string& class_name) { targets_.expect(actor, class_name); }
  // Removes an actor that the head refused or did not confirm. Its calls fail with `cause`.
  void forget(ActorId actor, const Error& cause);
  // The head has sent the actor's row.
  void updated(const ActorRow& row);
  // The head does not have this actor. An unconnected actor dies now. A connected one (a head restarted without its rows) dies with its
  // connection.
  void unknown(ActorId actor, const Error& cause);
  // The node reports that a process is gone, with its actors.
  void process_gone(WorkerId worker, const Error& cause);
  // No more reports will come: actors without a connection die now with `cause`, the others when their connection breaks.
  void lose_watch(const Error& cause);
  // There is a head again, which sends reports.
  void watch_again();
  // The head is gone: no actor restarts until watch_again().
  void head_gone();

  // The result of the call. Its value may be an exception that the method raised. It fails as NotFound for an actor that was never
  // expected, as ActorDied for an actor whose death is forgotten.
  ValueFuture call(Call call, std::vector<ValueFuture> deps);
  // The items that yielding calls of this process have sent.
  Streams& streams() { return streams_; }
  // A new number for Call::task, which is the same in all attempts of one call.
  std::uint64_t new_task() { return next_task_++; }
  // `any`: the actor's calls may overtake a call that waits for a reference. No effect on an unknown actor.
  void in_any_order(ActorId actor, bool any);
  // A call that is not sent yet fails as Cancelled/TaskCancelled. For a sent call, the actor's process gets a notice and decides. No effect
  // if `result` is not that of a call here.
  void cancel(const ValueFuture& result, CancelHow how);
  // Cancels the calls made within `parent`.
  void cancel_children(CallKey parent);
  // Keeps `what` until all calls on this actor that are open now have their answers.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);

 private:
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_drained(runtime::Peer& peer) override;
  void on_answer(runtime::Peer& peer, runtime::CallTag tag, Result<runtime::Message> answer) override;

  // Lets the actor's state take the event, then performs the actions that the state returns.
  void step(ActorId id, const TargetEvent& event);
  void perform(ActorId id, Target& target, const TargetAction& action);
  // step() for each actor at this endpoint.
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
  // With Reports::kNone: the reason why no reports come.
  std::optional<Error> no_reports_;
  std::uint64_t next_task_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::actors
