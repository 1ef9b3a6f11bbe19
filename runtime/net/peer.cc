#include "runtime/net/peer.h"

#include <iterator>
#include <map>
#include <utility>

#include "runtime/wire/codec.h"

namespace shoal::runtime {

struct Responder::Link {
  std::unique_ptr<Connection> connection;  // null once closed
};

Responder& Responder::operator=(Responder&& other) noexcept {
  if (this != &other) {
    if (link_) fail(internal("a request was dropped without an answer"));
    link_ = std::move(other.link_);
    id_ = other.id_;
  }
  return *this;
}

Responder::~Responder() {
  if (link_) fail(internal("a request was dropped without an answer"));
}

void Responder::reply(Message message, Flush flush) {
  const auto link = std::move(link_);
  if (!link || !link->connection) return;
  Frame frame{FrameKind::kReply, 0, id_, std::move(message.body), std::move(message.payload), std::move(message.fds)};
  if (const auto sized = check_size(frame, link->connection->limits()); !sized) {
    frame = {FrameKind::kError, 0, id_, encode_error(Error(sized.error()).in("the answer")), {}, {}};
  }
  link->connection->send(std::move(frame), flush);
}

void Responder::fail(const Error& error) {
  const auto link = std::move(link_);
  if (!link || !link->connection) return;
  link->connection->send({FrameKind::kError, 0, id_, encode_error(error), {}, {}}, Flush::kNow);
}

void Responder::answer(Result<Message> result) {
  if (result) {
    reply(std::move(*result));
  } else {
    fail(result.error());
  }
}

Peer::Peer(std::unique_ptr<Connection> connection, Clock& clock, PeerHandler& handler, std::uint64_t number)
    : clock_(clock), handler_(handler), identity_(connection->identity()), number_(number), link_(std::make_shared<Responder::Link>()) {
  link_->connection = std::move(connection);
  link_->connection->start(*this);
}

Peer::~Peer() {
  *alive_ = false;
  link_->connection.reset();
  fail_pending(cancelled("the connection was closed by this side"));
}

// Fails the calls in their order. A callback may destroy the peer.
void Peer::fail_pending(const Error& why) {
  std::map<std::uint64_t, Pending> pending(std::make_move_iterator(pending_.begin()), std::make_move_iterator(pending_.end()));
  pending_.clear();
  for (auto& [id, p] : pending) settle(p, shoal::fail(why));
}

// The callback may destroy this peer, so callers touch no member afterwards.
void Peer::settle(Pending& pending, Result<Message> result) {
  if (pending.callback) {
    pending.callback(std::move(result));
  } else {
    handler_.on_answer(*this, pending.tag, std::move(result));
  }
}

bool Peer::connected() const { return link_->connection != nullptr; }

std::size_t Peer::queued_bytes() const { return link_->connection ? link_->connection->queued_bytes() : 0; }

void Peer::read_arrived() {
  if (link_->connection) link_->connection->read_arrived();
}

void Peer::call(std::uint16_t method, Message message, Duration timeout, Callback callback, Flush flush) {
  Pending pending{std::move(callback), {}, {}};
  if (timeout != kNoTimeout) {
    pending.limit = clock_.after(timeout, [this, id = next_id_, timeout] {
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
      finish(id, shoal::fail(deadline_exceeded("no answer within " + std::to_string(ms) + " ms")));
    });
  }
  send_request(method, std::move(message), std::move(pending), flush);
}

void Peer::call(std::uint16_t method, Message message, CallTag tag, Flush flush) {
  send_request(method, std::move(message), {{}, tag, {}}, flush);
}

void Peer::send_request(std::uint16_t method, Message message, Pending pending, Flush flush) {
  const auto refuse = [&](Error why) {
    pending.limit = {};
    settle(pending, shoal::fail(std::move(why)));
  };
  if (!link_->connection) return refuse(unavailable("the connection is closed").with_reason("Disconnected"));
  if (pending_.size() >= kMaxPending) return refuse(resource_exhausted("too many calls are pending on one connection"));
  const std::uint64_t id = next_id_++;
  Frame frame{FrameKind::kRequest, method, id, std::move(message.body), std::move(message.payload), std::move(message.fds)};
  if (auto sized = check_size(frame, link_->connection->limits()); !sized) return refuse(sized.error());
  if (spare_.empty()) {
    pending_.emplace(id, std::move(pending));
  } else {
    auto node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = id;
    node.mapped() = std::move(pending);
    pending_.insert(std::move(node));
  }
  link_->connection->send(std::move(frame), flush);
}

Result<void> Peer::notify(std::uint16_t method, Message message, Flush flush) {
  if (!link_->connection) return shoal::fail(unavailable("the connection is closed").with_reason("Disconnected"));
  Frame frame{FrameKind::kNotice, method, 0, std::move(message.body), std::move(message.payload), std::move(message.fds)};
  SHOAL_OK(check_size(frame, link_->connection->limits()));
  link_->connection->send(std::move(frame), flush);
  return {};
}

void Peer::finish(std::uint64_t id, Result<Message> result) {
  auto node = pending_.extract(id);
  if (node.empty()) return;  // the call has timed out
  Pending pending = std::exchange(node.mapped(), {});
  if (spare_.size() < kMaxSpare) spare_.push_back(std::move(node));
  pending.limit = {};
  settle(pending, std::move(result));
}

void Peer::on_frame(Frame frame) {
  if (frame.fds_lost && frame.kind != FrameKind::kNotice) {
    const auto error = resource_exhausted("this process has no descriptors left for those of a message")
                           .with_hint("keep fewer large values at a time, or raise the limit: ulimit -n");
    if (frame.kind == FrameKind::kRequest) return Responder(link_, frame.id).fail(error);
    return finish(frame.id, shoal::fail(error));
  }
  Message message{std::move(frame.body), std::move(frame.payload), std::move(frame.fds)};
  switch (frame.kind) {
    case FrameKind::kRequest:
      return handler_.on_request(*this, {frame.method, std::move(message)}, Responder(link_, frame.id));
    case FrameKind::kNotice:
      return handler_.on_notice(*this, {frame.method, std::move(message)});
    case FrameKind::kReply:
      return finish(frame.id, std::move(message));
    case FrameKind::kLink:
      return;  // an offer of rings, to a connection that takes none
    case FrameKind::kError:
      return finish(frame.id, shoal::fail(decode_error(message.body)));
  }
}

void Peer::on_closed(Error why) {
  // The connection's code is on the stack, so `closing` destroys it only when this function returns.
  const auto closing = std::move(link_->connection);
  const auto alive = alive_;
  fail_pending(why);
  if (*alive) handler_.on_closed(*this, why);
}

}  // namespace shoal::runtime
