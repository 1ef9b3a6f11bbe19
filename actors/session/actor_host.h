// The actors that live in this process, and the calls that arrive for them.
//
// Each has a mailbox: calls of one caller stay in order. An actor whose work belongs to the main thread (Python, C++
// user code) lets its calls wait in a queue (CallQueue) that main drains; one whose methods are short (a ShardActor)
// answers on the loop. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "actors/cluster/cluster.h"
#include "actors/session/call_book.h"
#include "actors/session/references.h"
#include "actors/value/call.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A call that waits for its answer.
struct Incoming {
  Call call;
  runtime::Responder responder;
  std::uint64_t peer = 0;  // over which it came
  bool local = true;       // from a process of this host
  WorkerId from;           // the process of the caller, if it is known
  NodeId from_node;        // its node
  References* references = nullptr;
  CallBook::Taken taken{};  // once it was, from its queue

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
  // The last call: somebody ended the actor (the process lives on).
  virtual void on_kill(const Error& cause) = 0;
  // Its caller does not want the answer of one any more, which may have been given already. One that has not begun is answered with
  // call_cancelled; what becomes of one that runs is the actor's matter.
  virtual void on_cancel(CallKey, CancelHow) {}
};

class ActorHost final : public runtime::PeerHandler {
 public:
  static constexpr std::size_t kMaxBefore = 1 << 30;       // bytes of small arguments of one call
  static constexpr std::size_t kMaxUnfinished = 16 << 10;  // calls of which only arguments are here
  static constexpr std::size_t kAhead = 256 << 10;         // bytes of items that wait for a caller's socket; none where one has descriptors

  ActorHost(runtime::Clock& clock, runtime::Network& network) : clock_(clock), network_(network) {}

  // See ActorCalls.
  void count_with(References& references, ValueMemory& memory) {
    references_ = &references;
    memory_ = &memory;
  }
  Result<void> listen(const runtime::Endpoint& endpoint);
  std::string endpoint() const { return listener_ ? listener_->endpoint().to_string() : ""; }

  void add(ActorId id, std::string class_name, std::shared_ptr<Hosted> actor);
  void remove(ActorId id) { actors_.erase(id); }
  // Ends it: later calls fail with the cause.
  void kill(ActorId id, const Error& cause);
  // For calls on an actor that is not here by id: a worker hosts one actor and learns its id with the first call.
  void set_default(std::shared_ptr<Hosted> actor) { default_ = std::move(actor); }
  // The actor is made, and may begin with its calls: those that called it, or will, are told first. Once.
  void made();
  // Told of each call that is cancelled with those that it made, whether it is here or not.
  void on_cancel_children(std::function<void(CallKey, CancelHow)> told) { cancel_children_ = std::move(told); }
  // Of replies that the callers' sockets have not taken yet.
  std::size_t queued_bytes() const;
  // What a call yields, before its answer, where its caller's socket has room for it: what waits is open in this process. Whoever finds
  // room has used it, so that of many that yield to one caller no two find the same. kUnheard: the connection over which the call came is
  // gone.
  enum class Yielded { kSent, kNoRoom, kUnheard };
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
  // Of what nobody here will read: its sender has counted that for this process.
  void let_go(const std::vector<ObjectKey>& contains);
  void let_go(std::vector<Value> values);

  runtime::Clock& clock_;
  runtime::Network& network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::map<std::uint64_t, std::unique_ptr<runtime::Peer>> peers_;  // in the order in which they came
  std::uint64_t next_peer_ = 1;
  bool made_ = false;
  std::map<std::uint64_t, std::pair<WorkerId, NodeId>> callers_;  // whose they are
  // Arguments of calls that are to come, by connection and actor: all that came so far, or why they are of no use.
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
    std::size_t max_bytes = 1 << 30;  // of their small arguments
  };
  CallQueue() = default;
  explicit CallQueue(Options options) : options_(options) {}

  // ResourceExhausted for a call that the queue has no room for.
  void on_call(Incoming incoming) override;
  void on_kill(const Error& cause) override { killed_ = cause; }
  void on_cancel(CallKey call, CancelHow how) override;
  // What is cancelled after it was taken from here.
  void on_cancel_taken(std::function<void(CallKey, CancelHow)> told) { cancel_taken_ = std::move(told); }

  // Calls that are taken from here are noted there. It outlives what is taken.
  void note_in(CallBook& book) { book_ = &book; }
  // Whoever takes them hands them on: they run when that one says so (CallBook::began).
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
