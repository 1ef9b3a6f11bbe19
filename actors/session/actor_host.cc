#include "actors/session/actor_host.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/wire/messages.h"

namespace shoal::actors {

Result<void> ActorHost::listen(const runtime::Endpoint& endpoint) {
  SHOAL_TRY(listener_, network_.listen(endpoint, [this](std::unique_ptr<runtime::Connection> connection) {
    const std::uint64_t number = next_peer_++;
    peers_[number] = std::make_unique<runtime::Peer>(std::move(connection), clock_, *this, number);
  }));
  return {};
}

void ActorHost::add(ActorId id, std::string class_name, std::shared_ptr<Hosted> actor) {
  actors_[id] = {std::move(class_name), std::move(actor), {}};
}

void ActorHost::kill(ActorId id, const Error& cause) {
  const auto it = actors_.find(id);
  if (it == actors_.end() || it->second.dead) return;
  it->second.dead = cause;
  const auto actor = std::move(it->second.actor);
  if (actor) actor->on_kill(cause);
}

std::size_t ActorHost::queued_bytes() const {
  std::size_t out = 0;
  for (const auto& [number, peer] : peers_) out += peer->queued_bytes();
  return out;
}

void ActorHost::on_request(runtime::Peer& peer, runtime::Request request, runtime::Responder responder) {
  if (request.method != number(Method::kCall)) {
    return responder.fail(unimplemented(fmt::format("an actor does not know method {}", request.method)));
  }
  auto call = call_from(std::move(request.message), memory_);
  if (!call) return responder.fail(call.error());
  if (call->from) callers_[peer.number()] = {call->from, call->from_node};
  if (references_ != nullptr) {
    arrived(call->args, *references_, *memory_);
    for (Value& d : call->deps) arrived(d, *references_, *memory_);
  }
  const auto caller = callers_.find(peer.number());
  const auto [from, from_node] = caller == callers_.end() ? std::pair<WorkerId, NodeId>() : caller->second;
  Incoming incoming{*std::move(call), std::move(responder), peer.number(), peer.identity().local, from, from_node, references_};
  const auto it = actors_.find(incoming.call.actor);
  if (it != actors_.end()) {
    if (it->second.dead) return incoming.responder.fail(*it->second.dead);
    return it->second.actor->on_call(std::move(incoming));
  }
  if (default_) return default_->on_call(std::move(incoming));
  incoming.responder.fail(not_found("no actor " + to_string(incoming.call.actor) + " lives in this process").with_reason("ActorDied"));
}

void ActorHost::on_notice(runtime::Peer& peer, runtime::Request notice) {
  if (notice.method != number(Method::kCancelCall)) return;
  const auto cancel = cancel_from(notice.message.body);
  if (!cancel) return;
  const CallKey key{peer.number(), cancel->request};
  if (cancel->how.recursive && cancel_children_) cancel_children_(key, cancel->how);
  const auto it = actors_.find(cancel->actor);
  const auto actor = it == actors_.end() ? default_ : it->second.actor;
  if (actor) actor->on_cancel(key, cancel->how);
}

void ActorHost::on_closed(runtime::Peer& peer, const Error&) {
  callers_.erase(peer.number());
  const auto owned = peers_.extract(peer.number());  // destroyed when this returns
}

namespace {

std::size_t inline_bytes(const Call& call) {
  std::size_t out = call.args.inline_bytes();
  for (const auto& d : call.deps) out += d.inline_bytes();
  return out;
}

}  // namespace

void CallQueue::on_call(Incoming incoming) {
  if (killed_) return incoming.responder.fail(*killed_);
  const std::size_t bytes = inline_bytes(incoming.call);
  if (calls_.size() >= options_.max_waiting || bytes_ + bytes > options_.max_bytes) {
    return incoming.responder.fail(
        resource_exhausted(fmt::format("{} calls with {} bytes of arguments wait for this actor", calls_.size(), bytes_)));
  }
  bytes_ += bytes;
  calls_.push_back(std::move(incoming));
}

void CallQueue::on_cancel(CallKey key, CancelHow how) {
  const auto it = std::find_if(calls_.begin(), calls_.end(), [&](const Incoming& i) { return i.key() == key; });
  if (it == calls_.end()) {
    if (cancel_taken_) cancel_taken_(key, how);
    return;
  }
  bytes_ -= inline_bytes(it->call);
  it->responder.fail(call_cancelled(it->call.method));
  calls_.erase(it);
}

Incoming CallQueue::pop() {
  Incoming out = std::move(calls_.front());
  calls_.pop_front();
  bytes_ -= inline_bytes(out.call);
  if (book_ != nullptr) out.taken = CallBook::Taken(*book_, book_->taken(out.call, out.from, hands_on_));
  return out;
}

}  // namespace shoal::actors
