// Calls from this process to actors: one ordered queue per actor, one connection per process they live in, and the news
// of their deaths.
//
// A call waits in its actor's queue until the actor lives, until the references among its arguments are resolved and
// until the socket takes it; those behind it wait, too, so that an actor sees each caller's calls in the order they were
// made. When an actor dies every call on it fails with the cause that its node or the head tells. A broken connection
// is no death (D20): after a short wait for such a cause, what was sent on it fails as Unavailable/ActorUnavailable, and the
// connection is made again for the calls behind it. An actor that is started again when its process ends fails what was sent to it
// likewise, or gets it again (max_task_retries), before what waited. What was sent to a process that ends while it still makes the actor
// has not begun: it is sent again, and that is no try.
//
// News of a process's end may overtake what it sent before: as long as its connection is open they wait, for the connection ends by itself
// once all is read that was sent, but no longer than cause_grace. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"
#include "actors/session/call_book.h"
#include "actors/session/references.h"
#include "actors/session/streams.h"
#include "actors/value/call.h"
#include "runtime/loop/future.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

using ValueFuture = runtime::Future<Value>;

class ActorCalls final : public runtime::PeerHandler {
 public:
  struct Options {
    runtime::Duration connect_timeout = std::chrono::seconds(5);
    runtime::Duration cause_grace = std::chrono::milliseconds(600);  // after a connection broke, and before each attempt to mend it
    runtime::Duration retry_delay = {};                              // before what a process's death lost is sent to the next one
    runtime::Duration unreachable_after = std::chrono::seconds(30);  // of attempts: then what waits fails, and the attempts go on
    std::size_t max_queued = 1 << 20;                                // calls of one actor that are not sent yet
    std::size_t max_queued_bytes = 1 << 30;                          // of their small arguments
    std::size_t high_water_bytes = 8 << 20;                          // in a socket's queue; what exceeds it waits here
    std::size_t max_dead = 10'000;                                   // actors of which it is known why they died: the last
  };

  ActorCalls(runtime::Clock& clock, runtime::Network& network, Options options) : clock_(clock), network_(network), options_(options) {}
  // Counts what values contain that are sent or come back, for this process and those that it calls. Both outlive this.
  void count_with(References& references, ValueMemory& memory, WorkerId self, NodeId node) {
    references_ = &references;
    memory_ = &memory;
    self_ = self;
    node_ = node;
  }

  // Failures are noted there of calls that no other process can tell of. It outlives this.
  void note_in(CallBook& book) { book_ = &book; }
  // The calls that wait here, or are sent and not answered, until there are so many rows; returns how many were more.
  std::uint64_t tell(std::vector<ToldTask>& out, std::size_t limit) const;
  // The same calls, counted.
  void count(CallBook::Counts& counts) const;

  // An actor of which the head will tell (updated). Calls may be made from now on.
  void expect(ActorId actor, const std::string& class_name);
  bool knows(ActorId actor) const { return targets_.contains(actor); }
  // The head refused it, or did not answer: as if it had never been expected. Its calls fail with the cause.
  void forget(ActorId actor, const Error& cause);
  // Those of which something is still to be told.
  std::vector<ActorId> expected() const;
  // News from the head.
  void updated(const ActorRow& row);
  // The head knows nothing of it. Dead, unless it is connected (the head was started again, without its actors): then it dies with its
  // connection.
  void unknown(ActorId actor, const Error& cause);
  // News from the node: a process is gone, with its actors.
  void process_gone(WorkerId worker, const Error& cause);
  // Nobody will tell causes any more: an actor without a connection is dead, with this, and so is one whose connection breaks.
  void no_more_news(const Error& cause);
  // Somebody will again.
  void news_again() {
    no_news_.reset();
    head_here_ = true;
  }
  // The head is gone: until news_again() no actor is started again.
  void head_gone() { head_here_ = false; }

  // The future's value may be an exception that the method raised. NotFound for an actor that was never expected; ActorDied for one that
  // died so long ago that it is forgotten.
  ValueFuture call(Call call, std::vector<ValueFuture> deps);

  // Where what calls yield is taken from.
  Streams& streams() { return streams_; }

  // For a call that is made more than once: Call::task of its attempts has this number.
  std::uint64_t new_task() { return next_task_++; }

  // Whether calls on it that wait for a reference hold up those behind them: not in any order. Of an actor that is known here.
  void in_any_order(ActorId actor, bool any);
  // Whether there is a call without an answer, of those that somebody made: not of ours (kOurs).
  bool any_open() const;
  bool any_open(ActorId actor) const;
  // Whether it is a call whose answer is not there yet.
  bool pending(const ValueFuture& result) const;
  // One that is not sent fails as Cancelled/TaskCancelled; of one that is, its actor's process is told, and decides. Nothing for others.
  void cancel(const ValueFuture& result, CancelHow how);
  // Those that were made in this call, likewise.
  void cancel_children(CallKey parent);

  // Where its process is, and which it is, once it has one.
  NodeId node(ActorId actor) const;
  WorkerId worker(ActorId actor) const;
  // Keeps `what` until every call on this actor that was made here by now has its answer.
  void keep_until_answered(ActorId actor, std::shared_ptr<const void> what);

  // Why an actor is dead; nothing while it is not.
  const Error* cause(ActorId actor) const;
  // Whether it died before so many others that nothing is known of it any more (or never was).
  bool forgotten(ActorId actor) const { return forgot_ && !knows(actor); }
  bool alive(ActorId actor) const;
  // Whether it has no process, or waits for arguments, and no call of a user's waits for it.
  bool waits_for_nobody(ActorId actor) const;
  // Whether its constructor waits for its arguments.
  bool waits_for_arguments(ActorId actor) const;

 private:
  struct Queued {
    Call call;
    std::vector<ValueFuture> deps;  // whose values are not in the call yet
    runtime::Promise<Value> promise;
    std::int32_t tries = 0;  // that were lost
    // Of one whose arguments are too much for a message: how many went before it, over which connection.
    std::size_t before = 0;
    std::uint64_t connection = 0;
    std::size_t seen = 0;  // deps that were ready when it was last looked at: each is looked at once
    bool all_ready() {
      while (seen < deps.size() && deps[seen].ready()) ++seen;
      return seen >= deps.size();
    }
    // Whether that is more than a message has, once all are ready; or it has gone in part already.
    bool in_portions(bool local) const { return before > 0 || (call.deps.size() + deps.size() > 0 && is_too_much(local)); }
    bool is_too_much(bool local) const;
  };
  struct Sent {
    runtime::Promise<Value> promise;
    std::unique_ptr<Call> again;  // if it may be sent again,
    bool unmade_only = false;     // if its actor was not made (Target::made) when it is lost: else it may not
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
    bool restarts = false;   // the head may start it again
    bool undecided = false;  // whether it is
    bool made = false;       // as its process says: what was sent may have begun
    runtime::Timer deciding;
    std::int32_t retries = 0;
    bool disowned = false;  // the head will not tell of its death
    bool to_flush = false;  // stands in to_flush_
    bool any_order = false;
    std::vector<std::shared_ptr<const void>> kept, kept_next;  // until `unanswered` calls are; until those are that were made meanwhile
    std::size_t unanswered = 0;
    std::vector<std::function<void()>> news;  // of its process's end, and what came after; while they wait nothing is sent
    runtime::Timer last_words;
    bool delays = false;  // what is to be sent again, and in order what is behind it
    runtime::Timer delay_over;
  };
  struct Link {
    std::unique_ptr<runtime::Peer> peer;  // null while connecting
    std::uint64_t connection = 0;         // which of them, if there were several
    bool full = false;                    // until it is drained
    bool introduced = false;              // the other end knows whose it is
    bool made = false;                    // as that said
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
  // Over which its calls go now; null when they have to wait.
  Link* open_link(const Target& target);
  bool connected(const Target& target) const;
  void link_broke(const std::string& endpoint, const Error& why);
  void redial(const std::string& endpoint, const Error& why);
  // Sends what can be sent. A future that is set meanwhile may let others be sent, of this actor or another: the outermost call sees to
  // them one after the other, so that a chain of calls, however long, needs no stack.
  void flush(ActorId id, Target& target);
  static std::deque<Queued>::iterator place_of(Target& target, const Call& call);
  void flush_now(ActorId id, Target& target);
  void flush_others();
  void send(ActorId id, Target& target, Link& link, Queued&& queued);
  // Whether what an argument came to is what the call comes to.
  bool argument_failed(ActorId id, Queued& queued);
  // What goes before the call at that place, which is the first of the queue from then on; whether all of that is sent.
  Result<bool> send_before(ActorId id, Target& target, Link& link, std::size_t at);
  void forget_before(const Target& target, const Queued& queued);
  void stand_alone(std::span<const Value> values, bool local);
  void remember(Target& target, std::uint64_t number, Sent sent);
  // A failure that is noted; not those of a pool's calls, which notes them itself.
  void note(ActorId id, std::uint64_t task, std::uint32_t name, const Error& cause);
  std::uint32_t name_of(const Call& call) { return book_ != nullptr ? book_->name(call.method, call.function_name()) : 0; }
  void fail_calls(ActorId id, Target& target, const Error& cause, bool queued);
  // Now, or when its process's last words were read, after the news that wait already.
  void hear(ActorId id, Target& target, std::function<void()> news);
  void hear_waiting(ActorId id);
  void heard(const ActorRow& row);
  void heard_gone(ActorId id, WorkerId worker, const Error& cause);
  // Its process is gone, and the head will tell what becomes of it and thereby of what was sent to it. Should it keep silent, that is lost.
  void suspend(ActorId id, Target& target, const Error& cause);
  // What was sent and may be sent again stands in the queue again, in order; the rest of it fails.
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
  std::deque<ActorId> dead_;           // of them, in the order of their deaths
  bool forgot_ = false;                // one that was dead
  std::map<std::string, Link> links_;  // by endpoint
  bool any_full_ = false;
  std::deque<ActorId> to_flush_;
  bool flushing_ = false;
  std::optional<Error> no_news_;
  bool head_here_ = true;
  std::uint64_t next_ = 1, next_connection_ = 1;
  Streams streams_;
  static constexpr std::size_t kMaxSpare = 4096;
  std::vector<SentCalls::node_type> spare_;  // of calls that were answered, for those that come
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
