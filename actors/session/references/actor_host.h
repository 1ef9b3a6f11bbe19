// The actors in this process, and the calls that arrive for them.
//
// Each actor has a mailbox, which keeps the calls of one caller in order. Actors on the main thread (Python, C++ user code) use a
// CallQueue, which that thread drains. Actors with short methods (a ShardActor) answer on the loop. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "actors/session/references/call_book.h"
#include "actors/session/references/references.h"
#include "actors/value/call.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A call that waits for its answer.
struct Incoming {
  Call call;
  runtime::Responder responder;
  std::uint64_t peer = 0;  // number of the connection on which the call arrived
  bool local = true;       // the caller is on this host
  WorkerId from;           // the caller's process, if known
  NodeId from_node;        // the caller's node
  References* references = nullptr;
  CallBook::Taken taken{};  // its entry in the call book, made when the call leaves its queue

  CallKey key() const { return {peer, responder.number()}; }

  void reply(const Value& value, runtime::Flush flush = runtime::Flush::kNow) {
    auto message = to_message(value, local);
    if (!message) return fail(message.error());
    if (references != nullptr) references->sending(value, from, from_node);
    responder.reply(*std::move(message), flush);
    taken.ended(value.raised() ? kRaisedFailure : std::string_view());
  }
  void fail(const Error& error) {
    responder.fail(error);
    taken.ended(kind_of_failure(error));
  }
};

class Hosted {
 public:
  virtual ~Hosted() = default;
  virtual void on_call(Incoming incoming) = 0;
  // Called once, when the actor is killed while its process lives on.
  virtual void on_kill(const Error& cause) = 0;
  // Called when the caller cancels a call, which may be answered already. A call that has not begun is answered with call_cancelled(). The
  // actor decides about a running one.
  virtual void on_cancel(CallKey, CancelHow) {}
};

class ActorHost final : public runtime::PeerHandler {
 public:
  static constexpr std::size_t kMaxBefore = 1 << 30;       // bytes of the small arguments that are sent before one call (on_arguments)
  static constexpr std::size_t kMaxUnfinished = 16 << 10;  // calls of which only arguments have arrived so far
  // An item of a call waits while more bytes than this are queued in the caller's socket; an item with a descriptor, while any are.
  static constexpr std::size_t kAhead = 256 << 10;

  ActorHost(runtime::Clock& clock, runtime::Network& network) : clock_(clock), network_(network) {}

  // Received references are counted for this process, sent ones for their receivers. Both arguments outlive this object.
  void count_with(References& references, ValueMemory& memory) {
    references_ = &references;
    memory_ = &memory;
  }
  Result<void> listen(const runtime::Endpoint& endpoint);
  std::string endpoint() const { return listener_ ? listener_->endpoint().to_string() : ""; }

  void add(ActorId id, std::string class_name, std::shared_ptr<Hosted> actor);
  void remove(ActorId id) { actors_.erase(id); }
  // Ends an actor: later calls fail with `cause`.
  void kill(ActorId id, const Error& cause);
  // Sets the actor that gets the calls for unknown ids: a worker hosts one actor, and learns its id from the first call.
  void set_default(std::shared_ptr<Hosted> actor) { default_ = std::move(actor); }
  // To be called once, when the actor is made. Every caller, present or future, then receives kConstructed before any other message.
  void report_constructed();
  // `reported` is called for each recursive cancellation, even of a call that is not here, so that the calls made within that call end,
  // too.
  void on_cancel_children(std::function<void(CallKey, CancelHow)> reported) { cancel_children_ = std::move(reported); }
  // The bytes of replies that wait in this process because callers do not read fast enough.
  std::size_t queued_bytes() const;
  // False if the connection is gone on which the call arrived: then no process gets its answer.
  bool has_caller(const Incoming& incoming) const;
  // Sends an item that a running call yields, before the call's answer. Returns kNoRoom if too much is queued in the caller's socket
  // (kAhead): the item then has to be sent again later. Returns kDisconnected if the call's connection is gone.
  enum class Yielded { kSent, kNoRoom, kDisconnected };
  Result<Yielded> yields(const Incoming& incoming, std::uint64_t stream, std::uint64_t index, const Value& value);

 private:
  struct Entry {
    std::string class_name;
    std::shared_ptr<Hosted> actor;
    std::optional<Error> dead;
  };

  void on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) override;
  void on_notice(runtime::Peer& peer, runtime::Request notice) override;
  void on_closed(runtime::Peer& peer, const Error& why) override;
  void on_arguments(const runtime::Peer& peer, runtime::Message message);
  // Gives up the references in values that this process did not read: their sender has counted them for this process.
  void let_go(const std::vector<ObjectKey>& contains);
  void let_go(std::vector<Value> values);

  runtime::Clock& clock_;
  runtime::Network& network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::map<std::uint64_t, std::unique_ptr<runtime::Peer>> peers_;  // connections by number, in the order of arrival
  std::uint64_t next_peer_ = 1;
  bool constructed_ = false;
  std::map<std::uint64_t, std::pair<WorkerId, NodeId>> callers_;  // process and node of each caller, by connection
  // Arguments that arrived before their call, by connection and actor. `failed`: the reason why they are unusable.
  struct Before {
    std::vector<Value> values;
    std::size_t inline_bytes = 0;
    std::optional<Error> failed;
  };
  std::map<std::pair<std::uint64_t, ActorId>, Before> before_;
  References* references_ = nullptr;
  ValueMemory* memory_ = nullptr;
  std::map<ActorId, Entry> actors_;
  std::shared_ptr<Hosted> default_;
  std::function<void(CallKey, CancelHow)> cancel_children_;
};

// A mailbox that another thread drains while it owns the loop (LoopThread::own or wait).
class CallQueue final : public Hosted {
 public:
  struct Options {
    std::size_t max_waiting = 1 << 20;
    std::size_t max_bytes = 1 << 30;  // small arguments of all waiting calls together
  };
  CallQueue() = default;
  explicit CallQueue(Options options) : options_(options) {}

  // Refuses a call with ResourceExhausted when the queue is full.
  void on_call(Incoming incoming) override;
  void on_kill(const Error& cause) override { killed_ = cause; }
  void on_cancel(CallKey call, CancelHow how) override;
  // `reported` is called when a call is cancelled that pop() has returned before.
  void on_cancel_taken(std::function<void(CallKey, CancelHow)> reported) { cancel_taken_ = std::move(reported); }

  // From now on pop() enters each call into `book`, which outlives the calls.
  void note_in(CallBook& book) { book_ = &book; }
  // From now on the caller of pop() hands calls on to other threads, so that a call begins at CallBook::began, not at pop().
  void hands_on() { hands_on_ = true; }

  bool empty() const { return calls_.empty(); }
  Incoming pop();
  const std::optional<Error>& killed() const { return killed_; }

 private:
  const Options options_;
  std::deque<Incoming> calls_;
  std::size_t bytes_ = 0;
  std::optional<Error> killed_;
  std::function<void(CallKey, CancelHow)> cancel_taken_;
  CallBook* book_ = nullptr;
  bool hands_on_ = false;
};

}  // namespace shoal::actors
