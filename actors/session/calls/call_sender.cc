#include "actors/session/calls/call_sender.h"

#include <algorithm>
#include <utility>

#include "actors/protocol/wire/method.h"

namespace shoal::actors {

void ValueCounts::received(Result<Value>& value) const {
  if (!value) return;
  if (references != nullptr) arrived(*value, *references, *memory);
  if (value->shared()) value->memory()->referred = true;
}

void ValueCounts::sending(const Value& value, const TargetState& to) const {
  if (references != nullptr) references->sending(value, to.worker(), to.node());
}

void ValueCounts::make_whole(std::span<const Value> values, bool local) const {
  if (!local || memory == nullptr) return;
  for (const Value& v : values) {
    if (v.shared() && !v.whole()) (void)v.own_memory(memory);
  }
}

void CallSender::add(Target& t, UnsentCall&& call) {
  const ActorId id = call.call.actor;
  if (!flushing_ && t.unsent.empty() && !call.waits_for_arguments()) {
    ActorLink* const link = open_link(t);
    if (link != nullptr && !call.in_portions(link->peer->identity().local)) {
      flushing_ = true;
      send(t, *link, std::move(call));
      return flush_others();
    }
  }
  for (const auto& d : call.deps) {
    if (d.ready()) continue;
    d.then([this, alive = alive_, id](const Result<Value>&) {
      if (!*alive) return;
      if (Target* const target = targets_.find(id); target != nullptr) flush(id, *target);
    });
  }
  // With any_order() a call that waits for a reference holds up no other call, so no flush is needed.
  const bool waits = t.unsent.any_order() && !call.all_ready();
  t.unsent.add(std::move(call));
  if (!waits) flush(id, t);
}

void CallSender::flush(ActorId id, Target& t) {
  if (flushing_) {
    if (!std::exchange(t.to_flush, true)) to_flush_.push_back(id);
    return;
  }
  flushing_ = true;
  flush_now(t);
  flush_others();
}

void CallSender::flush_at(const std::string& endpoint) {
  for (const ActorId id : targets_.ids()) {
    Target* const t = targets_.find(id);
    if (t != nullptr && t->state.endpoint() == endpoint) flush(id, *t);
  }
}

void CallSender::flush_others() {
  while (!to_flush_.empty()) {
    const ActorId next = to_flush_.front();
    to_flush_.pop_front();
    Target* const t = targets_.find(next);
    if (t == nullptr) continue;
    t->to_flush = false;
    flush_now(*t);
  }
  flushing_ = false;
}

void CallSender::flush_now(Target& t) {
  for (std::size_t at = 0; at < t.unsent.size();) {
    ActorLink* const link = open_link(t);
    if (link == nullptr) return;
    at = t.unsent.next(at);
    if (at == t.unsent.size()) return;
    if (t.unsent[at].in_portions(link->peer->identity().local)) {
      const auto sent = send_portions(t, *link, at);
      if (sent && !*sent) return;
      at = 0;
      if (!sent) {
        fail_unsent(t, t.unsent.take(0), sent.error());
        continue;
      }
    }
    send(t, *link, t.unsent.take(at));
  }
}

// Sends a portion only while nothing is queued in the socket, since each queued descriptor stays open in this process.
Result<bool> CallSender::send_portions(Target& t, ActorLink& link, std::size_t at) {
  t.unsent.move_to_front(at);
  UnsentCall& c = t.unsent[0];
  if (std::any_of(c.deps.begin(), c.deps.end(), [](const ValueFuture& d) { return !d.peek() || d.peek()->raised(); })) return true;
  (void)c.resolve();  // succeeds: the lines above have looked for failed arguments
  runtime::Peer& peer = *link.peer;
  if (std::exchange(c.connection, link.connection) != link.connection) c.before = 0;
  const bool local = peer.identity().local;
  for (;;) {
    const bool is_rest = goes_with_call(c.call, c.before, local);
    if (is_rest && c.before == 0) return true;
    if (peer.queued_bytes() > 0) {
      links_.now_full(link);
      return false;
    }
    if (is_rest) return true;
    const std::size_t end = end_of_portion(c.call, c.before, local);
    const auto values = std::span(c.call.deps).subspan(c.before, end - c.before);
    counts_.make_whole(values, local);
    SHOAL_TRY(auto message, arguments_message(c.call, c.before, end, local));
    for (const Value& v : values) counts_.sending(v, t.state);
    const auto sent = peer.notify(number(Method::kArguments), std::move(message));
    if (!sent && !peer.connected()) return false;  // on_closed() then decides about the call
    if (!sent) return fail(sent.error());
    c.before = end;
  }
}

void CallSender::send(Target& t, ActorLink& link, UnsentCall&& c) {
  const ActorId id = c.call.actor;
  if (const Result<Value>* const failed = c.resolve()) {
    notes_.failed(c, *failed ? internal("it raised").with_reason(std::string(kRaisedFailure)) : failed->error());
    return c.promise.set(*failed);
  }
  runtime::Peer& peer = *link.peer;
  c.call.from = link.introduced ? WorkerId() : counts_.self;
  c.call.from_node = counts_.node;
  const bool local = peer.identity().local;
  const auto values = std::span(c.call.deps).subspan(c.before);
  counts_.make_whole(values, local);
  auto message = to_message(c.call, local, c.before);
  if (!message) return fail_unsent(t, c, message.error());
  link.introduced = true;
  counts_.sending(c.call.args, t.state);
  for (const Value& v : values) counts_.sending(v, t.state);
  const auto number_sent = next_++;
  SentCall sent{std::move(c.promise), {}, false, c.tries, peer.next_request(), c.call.parent, c.call.task, notes_.name_of(c.call)};
  const std::uint16_t method = c.before > 0 ? number(Method::kCallOfArguments) : number(Method::kCall);
  const std::int32_t retries = c.call.retries.value_or(t.state.retries());
  sent.unmade_only = retries >= 0 && c.tries >= retries;
  if ((!sent.unmade_only || t.state.repeats_unbegun()) && c.call.method != "__init__")
    sent.again = std::make_unique<Call>(std::move(c.call));
  t.sent.add(number_sent, std::move(sent), spare_);
  // While an answer is due on this connection, calls are gathered and flushed together; otherwise the call is flushed at once.
  const auto flush = peer.num_pending() == 0 ? runtime::Flush::kNow : runtime::Flush::kLater;
  peer.call(method, *std::move(message), {id.value, number_sent}, flush);
  if (c.before > 0 && !t.sent.contains(number_sent)) discard_portions(t, c);  // the connection refused the call at once
}

void CallSender::fail_unsent(const Target& t, const UnsentCall& c, const Error& cause) {
  discard_portions(t, c);
  notes_.failed(c, cause);
  c.promise.set(fail(cause));
}

void CallSender::discard_portions(const Target& t, const UnsentCall& c) {
  const ActorLink* const link = links_.find(t.state.endpoint());
  if (c.before == 0 || link == nullptr || !link->peer || link->connection != c.connection) return;
  Call none;
  none.actor = c.call.actor;
  if (auto message = arguments_message(none, 0, 0, true)) (void)link->peer->notify(number(Method::kArguments), *std::move(message));
}

}  // namespace shoal::actors
