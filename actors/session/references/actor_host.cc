#include "actors/session/references/actor_host.h"

#include <algorithm>

#include <fmt/format.h>

#include "actors/protocol/wire/method.h"

namespace shoal::actors {

Result<void> ActorHost::listen(const runtime::Endpoint& endpoint) {
  SHOAL_TRY(listener_, network_.listen(endpoint, [this](std::unique_ptr<runtime::Connection> connection) {
    const std::uint64_t number = next_peer_++;
    peers_[number] = std::make_unique<runtime::Peer>(std::move(connection), clock_, *this, number);
    if (constructed_) (void)peers_[number]->notify(actors::number(Method::kConstructed), {});
  }));
  return {};
}

void ActorHost::add(ActorId id, std::string class_name, std::shared_ptr<Hosted> actor) {
  actors_[id] = {std::move(class_name), std::move(actor), {}};
}

void ActorHost::report_constructed() {
  constructed_ = true;
  for (const auto& [number, peer] : peers_) (void)peer->notify(actors::number(Method::kConstructed), {});
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
  if (request.method != number(Method::kCall) && request.method != number(Method::kCallOfArguments)) {
    return responder.fail(unimplemented(fmt::format("an actor's process does not implement request {}", request.method)));
  }
  Unread unread;
  auto call = call_from(std::move(request.message), memory_, unread);
  if (!call) {
    let_go(unread.contains);
    if (request.method == number(Method::kCallOfArguments)) before_.erase({peer.number(), unread.actor});
    return responder.fail(call.error());
  }
  if (call->from) callers_[peer.number()] = {call->from, call->from_node};
  if (references_ != nullptr) {
    arrived(call->args, *references_, *memory_);
    for (Value& d : call->deps) arrived(d, *references_, *memory_);
  }
  if (request.method == number(Method::kCallOfArguments)) {
    auto before = before_.extract({peer.number(), call->actor});
    if (before.empty()) return responder.fail(invalid_argument("a call arrived without the arguments that should precede it"));
    if (before.mapped().failed) return responder.fail(*before.mapped().failed);
    auto& values = before.mapped().values;
    values.insert(values.end(), std::move_iterator(call->deps.begin()), std::move_iterator(call->deps.end()));
    call->deps = std::move(values);
  }
  const auto it = actors_.find(call->actor);
  if (it != actors_.end() && it->second.dead) return responder.fail(*it->second.dead);
  if (it == actors_.end() && !default_) {
    return responder.fail(not_found("no actor " + to_string(call->actor) + " lives in this process").with_reason("ActorDied"));
  }
  Hosted& actor = it != actors_.end() ? *it->second.actor : *default_;
  const auto caller = callers_.find(peer.number());
  const auto [from, from_node] = caller == callers_.end() ? std::pair<WorkerId, NodeId>() : caller->second;
  actor.on_call({*std::move(call), std::move(responder), peer.number(), peer.identity().local, from, from_node, references_});
}

void ActorHost::let_go(const std::vector<ObjectKey>& contains) {
  if (references_ != nullptr) (void)references_->received(contains);
}

void ActorHost::let_go(std::vector<Value> values) {
  for (const Value& v : values) let_go(v.refs());
}

void ActorHost::on_arguments(const runtime::Peer& peer, runtime::Message message) {
  auto arguments = arguments_from(std::move(message), memory_);
  if (!arguments) return;
  const std::pair key{peer.number(), arguments->actor};
  if (arguments->first == 0) before_.erase(key);
  if (!arguments->values) {
    let_go(arguments->unread);
  } else if (arguments->values->empty()) {
    return;
  }
  // Too many: the call that these arguments belong to will be refused.
  if (before_.size() >= kMaxUnfinished && !before_.contains(key)) {
    if (arguments->values) let_go(*std::move(arguments->values));
    return;
  }
  Before& before = before_[key];
  const auto refuse = [&](Error why) {
    if (arguments->values) let_go(*std::move(arguments->values));
    before = {{}, 0, std::move(why)};
  };
  if (before.failed) return refuse(*before.failed);
  if (!arguments->values) return refuse(arguments->values.error());
  if (arguments->first != before.values.size() || arguments->first + arguments->values->size() > Call::kMaxAllDeps) {
    return refuse(invalid_argument("arguments arrived out of order"));
  }
  for (Value& v : *arguments->values) {
    if (references_ != nullptr) arrived(v, *references_, *memory_);
    before.inline_bytes += v.inline_bytes();
    before.values.push_back(std::move(v));
  }
  if (before.inline_bytes > kMaxBefore) {
    before = {{}, 0, resource_exhausted(fmt::format("a call has more than {} bytes of small arguments", kMaxBefore))};
  }
}

bool ActorHost::has_caller(const Incoming& incoming) const {
  const auto found = peers_.find(incoming.peer);
  return found != peers_.end() && found->second->connected();
}

Result<ActorHost::Yielded> ActorHost::yields(const Incoming& incoming, std::uint64_t stream, std::uint64_t index, const Value& value) {
  const auto found = peers_.find(incoming.peer);
  if (found == peers_.end()) return Yielded::kDisconnected;
  runtime::Peer& peer = *found->second;
  if (peer.queued_bytes() > (incoming.local && value.shared() ? 0 : kAhead)) return Yielded::kNoRoom;
  SHOAL_TRY(auto message, item_message(stream, index, value, incoming.local));
  if (references_ != nullptr) references_->sending(value, incoming.from, incoming.from_node);
  const auto sent = peer.notify(number(Method::kItem), std::move(message));
  if (sent) return Yielded::kSent;
  if (!peer.connected()) return Yielded::kDisconnected;
  return fail(sent.error());
}

void ActorHost::on_notice(runtime::Peer& peer, runtime::Request notice) {
  if (notice.method == number(Method::kArguments)) return on_arguments(peer, std::move(notice.message));
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
  std::erase_if(before_, [&](const auto& before) { return before.first.first == peer.number(); });
  const auto owned = peers_.extract(peer.number());  // the connection, which has called this function, lives until it returns
}

void CallQueue::on_call(Incoming incoming) {
  if (killed_) return incoming.responder.fail(*killed_);
  const std::size_t bytes = incoming.call.inline_bytes();
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
  bytes_ -= it->call.inline_bytes();
  it->responder.fail(call_cancelled(it->call.method));
  calls_.erase(it);
}

Incoming CallQueue::pop() {
  Incoming out = std::move(calls_.front());
  calls_.pop_front();
  bytes_ -= out.call.inline_bytes();
  if (book_ != nullptr) out.taken = CallBook::Taken(*book_, book_->taken(out.call, out.from, hands_on_));
  return out;
}

}  // namespace shoal::actors
