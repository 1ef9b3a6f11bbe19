// Calls from this process to actors: an ordered queue per actor, a connection per actor process, and reports of their deaths.
//
// A call is queued until its actor lives, the references among its arguments are ready, and the socket has room. Calls behind it wait
// too, so that an actor receives each caller's calls in order. When an actor dies, its calls fail with the cause that its node or the
// head reports. A broken connection is not a death (docs/decisions/a-broken-connection-is-no-death.md): after cause_grace its calls fail as
// Unavailable/ActorUnavailable, and it is made again for queued ones. When an actor restarts, calls sent to it fail likewise, or are sent
// again first (max_task_retries). Calls to a process that ends before its actor is made are sent again, and no try is counted.
//
// A report of a process's end may overtake its last messages. Reports therefore wait until the connection ends, or for cause_grace. Loop
// thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/cluster/rows.h"
#include "actors/session/call_book.h"
#include "actors/session/references.h"
#include "actors/session/streams.h"
#include "actors/value/call.h"
#include "runtime/net/peer.h"

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

  ActorCalls(runtime::Clock& clock, runtime::Network& network, Options options) : clock_(clock), network_(network), options_(options) {}
  // Counts references in sent and received values, for this process and the receivers. Both outlive this.
  void count_with(References& references, ValueMemory& memory, WorkerId self, NodeId node) {
    references_ = &references;
    memory_ = &memory;
    self_ = self;
    node_ = node;
  }

  // Notes failures that no other process can report. `book` outlives this.
  void note_in(CallBook& book) { book_ = &book; }
  // Appends queued and unanswered calls, up to `limit` rows in all; returns the number omitted.
  std::uint64_t tell(std::vector<TaskReport>& out, std::size_t limit) const;
  // The same calls, counted.
  void count(CallBook::Counts& counts) const;

  // Adds an actor that the head will report on (updated). Calls may be made from now on.
  void expect(ActorId actor, const std::string& class_name);
  bool knows(ActorId actor) const { return targets_.contains(actor); }
  // Removes an actor that the head refused or did not confirm. Its calls fail with `cause`.
  void forget(ActorId actor, const Error& cause);
  // The actors that are not dead.
  std::vector<ActorId> expected() const;
  // A report from the head.
  void updated(const ActorRow& row);
  // The head does not have this actor. It dies now or, if it is connected (the head restarted without its actors), with its connection.
  void unknown(ActorId actor, const Error& cause);
  // A report from the node: a process is gone, with its actors.
  void process_gone(WorkerId worker, const Error& cause);
  // No reports will come: actors without a connection die now with `cause`, the others when their connection breaks.
  void no_more_news(const Error& cause);
  // Reports come again.
  void news_again() {
    no_news_.reset();
    head_here_ = true;
  }
  // The head is gone: no actor restarts until news_again().
  void head_gone() { head_here_ = false; }

  // The future's value may be an exception that the method raised. NotFound for an actor that was never expected; ActorDied for one whose
  // death is forgotten.
  ValueFuture call(Call call, std::vector<ValueFuture> deps);

  // Items that calls yield.
  Streams& streams() { return streams_; }

  // The number for Call::task of all attempts of one call.
  std::uint64_t new_task() { return next_task_++; }

  // `any`: a call that waits for a reference does not hold up those behind it. No effect on an unknown actor.
  void in_any_order(ActorId actor, bool any);
  // True if a call is unanswered, other than the runtime's own (kOurs).
  bool any_open() const;
  bool any_open(ActorId actor) const;
  // True if `result` is that of an unanswered call.
  bool pending(const ValueFuture& result) const;
  // An unsent call fails as Cancelled/TaskCancelled; for a sent one the actor's process is notified, and decides. No effect on others.
  void cancel(const ValueFuture& result, CancelHow how);
  // Cancels the calls made within `parent`.
  void cancel_children(CallKey parent);

  // The node and process of the actor, once known.
  NodeId node(ActorId actor) const;
  WorkerId worker(ActorId actor) const;
  // Keeps `what` until every call made here on this actor so far is answered.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);

  // The cause of an actor's death; null while it is not dead.
  const Error* cause(ActorId actor) const;
  // True if its death was forgotten after many later ones, or it may never have been known.
  bool forgotten(ActorId actor) const { return forgot_ && !knows(actor); }
  bool alive(ActorId actor) const;
  // True if it has no process, or waits for arguments, and no user's call waits for it.
  bool waits_for_nobody(ActorId actor) const;
  // True if its constructor waits for arguments.
  bool waits_for_arguments(ActorId actor) const;

 private:
  struct Queued {
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
    // True if the values exceed one message, once all are ready, or some are sent already.
    bool in_portions(bool local) const { return before > 0 || (call.deps.size() + deps.size() > 0 && is_too_much(local)); }
    bool is_too_much(bool local) const;
  };
  struct Sent {
    runtime::Promise<Value> promise;
    std::unique_ptr<Call> again;  // a copy to send again, if allowed
    bool unmade_only = false;     // resend only if its actor was not made (Target::made) when the call is lost
    std::int32_t tries = 0;
    std::uint64_t request = 0;  // its number on the connection
    CallKey parent;
    std::uint64_t task = 0;  // with the attempt
    std::uint32_t name = 0;  // in the book
  };
  using SentCalls = std::map<std::uint64_t, Sent>;
  struct Target {
    std::string class_name;
    WorkerId worker;
    NodeId node;
    std::string endpoint;  // empty until it lives
    std::deque<Queued> queue;
    std::size_t queued_bytes = 0;
    SentCalls sent;
    std::optional<Error> dead;
    bool restarts = false;   // the head may restart it
    bool undecided = false;  // its process is gone, and the head's report is awaited
    bool made = false;       // kMade was received, or may be unread; sent calls may have begun
    runtime::Timer deciding;
    std::int32_t retries = 0;
    bool disowned = false;  // the head will not report its death
    bool to_flush = false;  // listed in to_flush_
    bool any_order = false;
    std::vector<std::shared_ptr<const void>> kept, kept_next;  // until `unanswered` calls are answered; until the round after that
    std::size_t unanswered = 0;
    std::vector<std::function<void()>> news;  // reports from its process's end on; nothing is sent while they wait
    runtime::Timer cause_timer;
    bool delays = false;  // holds back calls to be resent and, if ordered, those behind
    runtime::Timer delay_over;
  };
  struct Link {
    std::unique_ptr<runtime::Peer> peer;  // null while connecting
    std::uint64_t connection = 0;         // number of the current connection
    bool full = false;                    // until on_drained
    bool introduced = false;              // this process's id was sent on it
    bool made = false;                    // kMade was received
    runtime::Timer redial;
    std::optional<runtime::TimePoint> broken_since;
  };

  bool any_open(const Target& target) const;
  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_drained(runtime::Peer& peer) override;
  void on_answer(runtime::Peer& peer, runtime::CallTag tag, Result<runtime::Message> answer) override;

  void connect(const std::string& endpoint);
  void heard_made(const runtime::Peer& peer);
  static void now_made(Target& target);
  // The link for its calls; null when they have to wait.
  Link* open_link(const Target& target);
  bool connected(const Target& target) const;
  void link_broke(const std::string& endpoint, const Error& why);
  void redial(const std::string& endpoint, const Error& why);
  // Sends what can be sent. A future set meanwhile may allow sends to any actor; the outermost call makes these in a loop, so that long
  // chains need no stack.
  void flush(ActorId id, Target& target);
  static std::deque<Queued>::iterator place_of(Target& target, const Call& call);
  void flush_now(ActorId id, Target& target);
  void flush_others();
  void send(ActorId id, Target& target, Link& link, Queued&& queued);
  // Completes the call with a failed or raised argument, if there is one; returns true then.
  bool argument_failed(ActorId id, Queued& queued);
  // Sends the portions before the call at `at`, which becomes the queue's first; true once all are sent.
  Result<bool> send_before(ActorId id, Target& target, Link& link, std::size_t at);
  void forget_before(const Target& target, const Queued& queued);
  void stand_alone(std::span<const Value> values, bool local);
  void remember(Target& target, std::uint64_t number, Sent sent);
  // Notes a failure, except for calls of a pool, which notes them itself.
  void note(ActorId id, std::uint64_t task, std::uint32_t name, const Error& cause);
  std::uint32_t name_of(const Call& call) { return book_ != nullptr ? book_->name(call.method, call.function_name()) : 0; }
  void fail_calls(ActorId id, Target& target, const Error& cause, bool queued);
  // Handles a report at once, or after earlier reports once the connection has ended.
  void hear(ActorId id, Target& target, std::function<void()> news);
  void hear_waiting(ActorId id);
  void received(const ActorRow& row);
  void heard_gone(ActorId id, WorkerId worker, const Error& cause);
  // The process is gone, and the head's report decides about the calls sent to it. Without a report they are lost.
  void suspend(ActorId id, Target& target, const Error& cause);
  // Queues resendable calls again, in order, and fails the rest.
  enum class Lost { kConnection, kProcess };
  static Error away(ActorId id, const Target& target, const Error& cause);
  void lose_sent(ActorId id, Target& target, const Error& cause, Lost what);
  void delay(ActorId id, Target& target);
  void die(ActorId id, Target& target, const Error& cause);
  void keep_next(ActorId id, Target& target);

  runtime::Clock& clock_;
  runtime::Network& network_;
  const Options options_;
  std::map<ActorId, Target> targets_;
  std::deque<ActorId> dead_;           // dead actors, in the order of their deaths
  bool forgot_ = false;                // a dead actor was removed
  std::map<std::string, Link> links_;  // by endpoint
  bool any_full_ = false;
  std::deque<ActorId> to_flush_;
  bool flushing_ = false;
  std::optional<Error> no_news_;
  bool head_here_ = true;
  std::uint64_t next_ = 1, next_connection_ = 1;
  Streams streams_;
  static constexpr std::size_t kMaxSpare = 4096;
  std::vector<SentCalls::node_type> spare_;  // nodes of answered calls, for reuse
  std::uint64_t next_task_ = 1;
  CallBook* book_ = nullptr;
  References* references_ = nullptr;
  ValueMemory* memory_ = nullptr;
  WorkerId self_;
  NodeId node_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);

 public:
  ~ActorCalls();
};

}  // namespace shoal::actors
