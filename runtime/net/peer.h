// Requests, replies and notices over a Connection, for all processes: head, node, worker, driver, CLI.
//
// Loop thread only. Handlers and callbacks may destroy the Peer.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/loop/clock.h"
#include "runtime/net/connection.h"

namespace shoal::runtime {

// The contents of a request, reply or notice.
struct Message {
  Bytes body;
  Bytes payload;
  std::vector<Fd> fds;
};

struct Request {
  std::uint16_t method = 0;
  Message message;
};

class Peer;

// Identifies a call for its caller.
struct CallTag {
  std::uint64_t first = 0, second = 0;
};

// The obligation to answer one request. Its destructor answers with Internal if no answer was given, so that no caller waits forever.
class Responder {
 public:
  Responder(Responder&&) noexcept = default;
  Responder& operator=(Responder&&) noexcept;
  ~Responder();

  // The request's number on its connection.
  std::uint64_t number() const { return id_; }

  // A message beyond the connection's limits is replaced by the error InvalidArgument/FrameTooLarge.
  void reply(Message message, Flush flush = Flush::kNow);
  void fail(const Error& error);
  void answer(Result<Message> result);

 private:
  friend class Peer;
  struct Link;
  Responder(std::shared_ptr<Link> link, std::uint64_t id) : link_(std::move(link)), id_(id) {}
  std::shared_ptr<Link> link_;  // null once answered
  std::uint64_t id_ = 0;
};

class PeerHandler {
 public:
  virtual void on_request(Peer& peer, Request request, Responder responder) = 0;
  // The notice lacks its descriptors if this process could not open them; a request or a reply fails with ResourceExhausted then.
  virtual void on_notice(Peer& peer, Request notice) = 0;
  // The last call to the handler. Pending calls have failed with `why` before.
  virtual void on_closed(Peer& peer, const Error& why) = 0;
  // As in Connection: the queue is empty again.
  virtual void on_drained(Peer&) {}
  // The answer to a call made with a tag instead of a callback. ~Peer calls it, too.
  virtual void on_answer(Peer&, CallTag, Result<Message>) {}

 protected:
  ~PeerHandler() = default;
};

class Peer final : private ConnectionHandler {
 public:
  using Callback = std::function<void(Result<Message>)>;
  static constexpr Duration kNoTimeout = Duration::max();
  static constexpr std::size_t kMaxPending = 1 << 20;

  // `clock` and `handler` outlive the peer. `number` is the owner's key for this peer: owners iterate over peers in that order, never in
  // that of their addresses, so that a simulated run repeats.
  Peer(std::unique_ptr<Connection> connection, Clock& clock, PeerHandler& handler, std::uint64_t number = 0);
  ~Peer();  // pending calls fail with Cancelled; no on_closed

  // A message beyond the connection's limits is not sent: only this call fails, with InvalidArgument/FrameTooLarge. Immediate failures
  // call back before this returns.
  void call(std::uint16_t method, Message message, Duration timeout, Callback callback, Flush flush = Flush::kNow);
  // As call() above, without a timeout and without an allocation for the callback: the handler's on_answer gets the answer.
  void call(std::uint16_t method, Message message, CallTag tag, Flush flush);
  Result<void> notify(std::uint16_t method, Message message, Flush flush = Flush::kNow);

  // Closes from this side: pending calls fail with `why`, then the handler's on_closed runs, as if the connection had broken.
  void close(Error why) {
    if (connected()) on_closed(std::move(why));
  }

  // As in Connection: handles requests, notices and answers that have arrived. The peer may be closed or destroyed meanwhile.
  void read_arrived();

  // Number of the next call(), as in the other side's Responder.
  std::uint64_t next_request() const { return next_id_; }

  const PeerIdentity& identity() const { return identity_; }
  std::uint64_t number() const { return number_; }
  // False once the connection is gone, also inside the callbacks of pending calls and on_closed.
  bool connected() const;
  std::size_t num_pending() const { return pending_.size(); }
  // Bytes that the socket has not accepted yet.
  std::size_t queued_bytes() const;

 private:
  void on_frame(Frame frame) override;
  void on_closed(Error why) override;
  void on_drained() override { handler_.on_drained(*this); }
  void finish(std::uint64_t id, Result<Message> result);
  void fail_pending(const Error& why);

  struct Pending {
    Callback callback;  // empty for a call with a tag
    CallTag tag;
    Timer limit;
  };
  using PendingCalls = std::unordered_map<std::uint64_t, Pending>;
  static constexpr std::size_t kMaxSpare = 4096;
  void send_request(std::uint16_t method, Message message, Pending pending, Flush flush);
  void settle(Pending& pending, Result<Message> result);

  Clock& clock_;
  PeerHandler& handler_;
  const PeerIdentity identity_;
  const std::uint64_t number_;
  std::shared_ptr<Responder::Link> link_;  // owns the connection; emptied before responders that outlive the peer use it
  PendingCalls pending_;
  std::vector<PendingCalls::node_type> spare_;  // nodes of answered calls, reused for new ones
  std::uint64_t next_id_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::runtime
