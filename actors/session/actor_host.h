// The actors in this process, and the calls that arrive for them.
//
// Each has a mailbox that keeps a caller's calls in order. Actors on the main thread (Python, C++ user code) use a CallQueue, which that
// thread drains. Actors with short methods (a ShardActor) answer on the loop. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "actors/session/call_book.h"
#include "actors/session/references.h"
#include "actors/value/call.h"
#include "runtime/net/peer.h"

namespace shoal::actors {

// A call that waits for its answer.
struct Incoming {
  Call call;
  runtime::Responder responder;
  std::uint64_t peer = 0;  // its connection
  bool local = true;       // from a process of this host
  WorkerId from;           // the caller's process, if known
  NodeId from_node;        // the caller's node
  References* references = nullptr;
  CallBook::Taken taken{};  // set once it leaves its queue

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
  // The last call: the actor was killed, while its process lives on.
  virtual void on_kill(const Error& cause) = 0;
  // The caller cancels a call, which may be answered already. A call that has not begun is answered with call_cancelled; the actor
  // decides about a running one.
  virtual void on_cancel(CallKey, CancelHow) {}
};

class ActorHost final : public runtime::PeerHandler {
 public:
  static constexpr std::size_t kMaxBefore = 1 << 30;       // bytes of small arguments per call
  static constexpr std::size_t kMaxUnfinished = 16 << 10;  // calls whose arguments alone are here
  static constexpr std::size_t kAhead = 256 << 10;  // bytes queued in a caller's socket before items wait; 0 for items with descriptors

  ActorHost(runtime::Clock& clock, runtime::Network& network) : clock_(clock), network_(network) {}

  // Counts references in received and sent values, for this process and the receivers. Both outlive this.
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
  // The actor for unknown ids: a worker hosts one actor and gets its id with the first call.
  void set_default(std::shared_ptr<Hosted> actor) { default_ = std::move(actor); }
  // To be called once, when the actor is made: present and future callers receive kMade first.
  void made();
  // `reported` is called for each recursive cancellation of a call, even if the call is not here: calls made within it end, too.
  void on_cancel_children(std::function<void(CallKey, CancelHow)> reported) { cancel_children_ = std::move(reported); }
  // Bytes of replies that the callers' sockets have not taken.
  std::size_t queued_bytes() const;
  // Sends an item of a call before its answer, if the caller's socket has room, since queued descriptors stay open here. A sent item
  // takes its room at once, so that no two calls use the same. kUnheard: the call's connection is gone.
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
  // Uncounts objects in unread values, which the sender has counted for this process.
  void let_go(const std::vector<ObjectKey>& contains);
  void let_go(std::vector<Value> values);

  runtime::Clock& clock_;
  runtime::Network& network_;
  std::unique_ptr<runtime::Listener> listener_;
  std::map<std::uint64_t, std::unique_ptr<runtime::Peer>> peers_;  // in the order of arrival
  std::uint64_t next_peer_ = 1;
  bool made_ = false;
  std::map<std::uint64_t, std::pair<WorkerId, NodeId>> callers_;  // by connection
  // Arguments received before their call, by connection and actor, or the reason why they are unusable.
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
    std::size_t max_bytes = 1 << 30;  // total of small arguments
  };
  CallQueue() = default;
  explicit CallQueue(Options options) : options_(options) {}

  // Refuses a call with ResourceExhausted when the queue is full.
  void on_call(Incoming incoming) override;
  void on_kill(const Error& cause) override { killed_ = cause; }
  void on_cancel(CallKey call, CancelHow how) override;
  // `told` is called for calls cancelled after pop().
  void on_cancel_taken(std::function<void(CallKey, CancelHow)> reported) { cancel_taken_ = std::move(reported); }

  // Notes calls from pop() on. `book` outlives the calls.
  void note_in(CallBook& book) { book_ = &book; }
  // pop() does not start calls; they run from CallBook::began on.
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
