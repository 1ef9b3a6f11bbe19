#include "actors/session/calls/actor_calls.h"

#include <utility>

#include <fmt/format.h>

#include "actors/protocol/wire/method.h"

namespace shoal::actors {

using Kind = TargetAction::Kind;
using Phase = TargetState::Phase;

ActorCalls::ActorCalls(runtime::Clock& clock, runtime::Network& network, Options options)
    : clock_(clock),
      options_(options),
      targets_(notes_, options.max_dead),
      links_(clock, network, {options.connect_timeout, options.cause_grace, options.high_water_bytes}, *this,
             {.opened = [this](const std::string& endpoint) { sender_.flush_at(endpoint); },
              .failed = [this](const std::string& endpoint, const Error& why) { link_failed(endpoint, why); },
              .redial_due =
                  [this](const std::string& endpoint, const Error& why, runtime::Duration broken_for) {
                    step_at(endpoint, RedialDue{why, broken_for >= options_.unreachable_after});
                    if (targets_.any_at(endpoint)) {
                      links_.dial(endpoint);
                    } else {
                      links_.drop(endpoint);
                    }
                  }}),
      sender_(targets_, links_, notes_, counts_) {}

ActorCalls::~ActorCalls() {
  *alive_ = false;
  links_.clear();
  const Error left = cancelled("this process left the cluster");
  for (auto& [id, t] : targets_.all()) {
    for (const auto& unsent : t.unsent.take_all()) unsent.promise.set(fail(left));
    for (const auto& [n, sent] : t.sent.take_all()) sent.promise.set(fail(left));
  }
}

void ActorCalls::count_with(References& references, ValueMemory& memory, WorkerId self, NodeId node) {
  counts_ = {&references, &memory, self, node};
  notes_.self = self;
}

// ---- events of the actors' states

void ActorCalls::forget(ActorId actor, const Error& cause) {
  const auto node = targets_.remove(actor);
  if (!node.empty()) fail_calls(actor, node.mapped(), cause);
}

void ActorCalls::updated(const ActorRow& row) { step(row.id, row); }

void ActorCalls::unknown(ActorId actor, const Error& cause) { step(actor, Unknown{cause}); }

void ActorCalls::process_gone(WorkerId worker, const Error& cause) {
  if (!worker) return;
  const TargetEvent gone = ProcessGone{worker, cause};
  for (const ActorId id : targets_.ids()) {
    const Target* const t = targets_.find(id);
    const bool concerned = t != nullptr && (t->state.worker() == worker || t->state.phase() == Phase::kEnding);
    if (concerned && t->state.phase() != Phase::kDead) step(id, gone);
  }
}

void ActorCalls::lose_watch(const Error& cause) {
  reports_ = Reports::kNone;
  no_reports_ = cause;
  const TargetEvent ended = ReportsEnded{cause};
  for (const ActorId id : targets_.ids()) step(id, ended);
}

void ActorCalls::watch_again() {
  reports_ = Reports::kAll;
  no_reports_.reset();
}

void ActorCalls::head_gone() {
  if (reports_ == Reports::kAll) reports_ = Reports::kOfNodes;
}

void ActorCalls::step_at(const std::string& endpoint, const TargetEvent& event) {
  for (const ActorId id : targets_.ids()) {
    const Target* const target = targets_.find(id);
    if (target != nullptr && target->state.endpoint() == endpoint) step(id, event);
  }
}

void ActorCalls::step(ActorId id, const TargetEvent& event) {
  Target* target = targets_.find(id);
  if (target == nullptr) return;
  for (const TargetAction& action : target->state.step(event, {links_.connected(target->state.endpoint()), reports_})) {
    // A callback of a future may have removed the actor.
    target = targets_.find(id);
    if (target == nullptr) return;
    perform(id, *target, action);
  }
}

void ActorCalls::perform(ActorId id, Target& t, const TargetAction& action) {
  switch (action.kind) {
    case Kind::kConnect: {
      if (!t.state.takes_calls()) return;
      const ActorLink* const link = links_.find(t.state.endpoint());
      if (link == nullptr) return links_.dial(std::string(t.state.endpoint()));
      if (link->constructed) step(id, Constructed());
      return sender_.flush(id, t);
    }
    case Kind::kStartGrace:
      t.grace = clock_.after(options_.cause_grace, [this, id] { step(id, GraceOver()); });
      return;
    case Kind::kStopGrace:
      t.grace = {};
      return;
    case Kind::kDropCopies:
      return t.sent.drop_copies();
    case Kind::kRequeueUnbegun:
    case Kind::kRetryOnNextProcess:
    case Kind::kRetryOnReconnection:
      return lose_sent(id, t, action);
    case Kind::kDie:
      targets_.died(id);
      [[fallthrough]];
    case Kind::kFailCalls:
      return fail_calls(id, t, *action.cause);
  }
}

void ActorCalls::lose_sent(ActorId id, Target& t, const TargetAction& action) {
  const auto lost = t.sent.requeue(t.unsent, action.kind != Kind::kRequeueUnbegun,
                                   [&](const SentCall& call) { notes_.failed(id, call.task, call.name, *action.cause); });
  if (lost.tried_again && action.kind == Kind::kRetryOnNextProcess && options_.retry_delay > runtime::Duration::zero()) {
    t.unsent.delay_lost(true);
    t.delay_over = clock_.after(options_.retry_delay, [this, id] {
      Target& target = *targets_.find(id);
      target.unsent.delay_lost(false);
      sender_.flush(id, target);
    });
  }
  for (const auto& promise : lost.failed) promise.set(fail(*action.cause));
  if (Target* const still = targets_.find(id); still != nullptr) sender_.flush(id, *still);
}

void ActorCalls::fail_calls(ActorId id, Target& t, const Error& cause) {
  const auto sent = t.sent.take_all();
  const auto unsent = t.unsent.take_all();
  for (const auto& [n, call] : sent) {
    notes_.failed(id, call.task, call.name, cause);
    call.promise.set(fail(cause));
  }
  for (const auto& call : unsent) {
    notes_.failed(call, cause);
    call.promise.set(fail(cause));
  }
}

// ---- connections

// While reports still come, one of them will explain the end of the connection. Without reports nothing will explain it, so the actors at
// this endpoint die now.
void ActorCalls::link_failed(const std::string& endpoint, const Error& why) {
  if (no_reports_) step_at(endpoint, ReportsEnded{*no_reports_});
  if (targets_.any_at(endpoint)) {
    links_.redial_later(endpoint, why);
  } else {
    links_.drop(endpoint);
  }
}

void ActorCalls::on_request(runtime::Peer&, runtime::Request, runtime::Responder responder) {
  responder.fail(unimplemented("a caller accepts no requests"));
}

void ActorCalls::on_notice(runtime::Peer& peer, runtime::Request notice) {
  if (!*alive_) return;
  if (notice.method == number(Method::kConstructed)) {
    const auto link = links_.with(peer);
    if (link == nullptr) return;
    link->second.constructed = true;
    return step_at(link->first, Constructed());
  }
  if (notice.method != number(Method::kItem)) return;
  auto item = item_from(std::move(notice.message), counts_.memory);
  if (!item) return;
  counts_.received(item->value);
  streams_.arrived(item->stream, item->index, std::move(item->value));
}

void ActorCalls::on_closed(runtime::Peer& peer, const Error& why) {
  const auto link = links_.with(peer);
  if (link == nullptr) return;
  const auto owned = std::move(link->second.peer);  // the connection, which has called this function, lives until it returns
  const std::string endpoint = link->first;
  step_at(endpoint, ConnectionEnded{owned->identity().local});
  link_failed(endpoint, why);
}

void ActorCalls::on_drained(runtime::Peer& peer) {
  if (const std::string endpoint = links_.drained(peer); !endpoint.empty()) sender_.flush_at(endpoint);
}

void ActorCalls::on_answer(runtime::Peer&, runtime::CallTag tag, Result<runtime::Message> answer) {
  if (!*alive_) return;
  Target* const t = targets_.find(ActorId{tag.first});
  if (t == nullptr) return;
  if (!answer) {
    if (t->state.phase() == Phase::kUndecided) return;  // the head's report will decide about this call
    const ActorLink* const link = links_.find(t->state.endpoint());
    if (link != nullptr && link->peer && !link->peer->connected()) return;  // on_closed() decides about this call
  }
  const auto call = sender_.answered(*t, tag.second);
  if (!call) return;
  if (!answer) {
    notes_.failed(ActorId{tag.first}, call->task, call->name, answer.error());
    return call->promise.set(fail(std::move(answer).error()));
  }
  auto value = value_from(*std::move(answer), counts_.memory);
  counts_.received(value);
  call->promise.set(std::move(value));
}

// ---- calls

ValueFuture ActorCalls::call(Call call, std::vector<ValueFuture> deps) {
  const ActorId id = call.actor;
  if (call.task == 0) call.task = next_task_++;
  UnsentCall unsent{std::move(call), std::move(deps), {}};
  const auto future = unsent.promise.future();
  const auto refuse = [&](Error why) {
    unsent.promise.set(fail(std::move(why)));
    return future;
  };
  Target* const t = targets_.find(id);
  if (t == nullptr) {
    const auto unknown = targets_.forgotten(id)
                             ? unavailable("it died long ago, or this process never had its handle").with_reason("ActorDied")
                             : not_found("this process has no handle of actor " + to_string(id));
    return refuse(Error(unknown).in("actor " + to_string(id)));
  }
  // The failure is not entered into the call book, since a loop of such calls would displace all other failures.
  if (const Error* const cause = t->state.cause_of_death()) return refuse(*cause);
  if (unsent.deps.size() > Call::kMaxAllDeps) {
    return refuse(invalid_argument(fmt::format("a call has {} references as arguments, which are too many", unsent.deps.size()))
                      .with_reason("TooManyArguments")
                      .with_hint("pass them as one list of references, and get() it where they are needed"));
  }
  const std::size_t size = t->unsent.size(), bytes = t->unsent.bytes();
  if (size >= options_.max_queued || bytes + unsent.call.args.inline_bytes() > options_.max_queued_bytes) {
    return refuse(
        resource_exhausted(fmt::format("{} calls with {} bytes of arguments wait for actor {}", size, bytes, t->state.class_name())));
  }
  sender_.add(*t, std::move(unsent));
  return future;
}

void ActorCalls::in_any_order(ActorId actor, bool any) {
  Target* const t = targets_.find(actor);
  if (t == nullptr) return;
  t->unsent.in_any_order(any);
  sender_.flush(actor, *t);
}

void ActorCalls::cancel(const ValueFuture& result, CancelHow how) {
  for (auto& [id, t] : targets_.all()) {
    if (const std::size_t at = t.unsent.find(result); at < t.unsent.size()) {
      const UnsentCall call = t.unsent.take(at);
      sender_.fail_unsent(t, call, call_cancelled(t.state.class_name() + "." + call.call.method));
      // A callback of the cancelled call may have removed the actor.
      Target* const left = targets_.find(id);
      if (left != nullptr) sender_.flush(id, *left);  // calls behind the cancelled one may have waited for its arguments
      return;
    }
    SentCall* const sent = t.sent.find(result);
    if (sent == nullptr) continue;
    sent->again.reset();
    const ActorLink* const link = links_.find(t.state.endpoint());
    if (link == nullptr || !link->peer) return;  // the call is lost already
    (void)link->peer->notify(number(Method::kCancelCall), {to_bytes(CancelCall{id, sent->request, how}), {}, {}});
    return;
  }
}

void ActorCalls::cancel_children(CallKey parent) {
  for (const auto& child : targets_.children(parent)) cancel(child, {});
}

void ActorCalls::keep_until_answered(ActorId actor, std::shared_ptr<const void> what) {
  Target* const t = targets_.find(actor);
  if (t == nullptr) return;
  t->kept_next.push_back(std::move(what));
  if (t->unanswered == 0) keep_next(actor, *t);
}

// Works in rounds, so that each call needs one callback for all kept values. A round waits for the calls that are open when it begins, and
// then drops the values that were kept by that time.
void ActorCalls::keep_next(ActorId id, Target& t) {
  t.kept = std::exchange(t.kept_next, {});
  if (t.kept.empty()) return;
  const auto answered = [this, alive = alive_, id](const Result<Value>&) {
    Target* const target = *alive ? targets_.find(id) : nullptr;
    if (target != nullptr && --target->unanswered == 0) keep_next(id, *target);
  };
  // Does not wait for the constructor's call, which may wait for resources forever. The call that ends the actor is queued behind that one,
  // so the actor does not end too early.
  std::vector<ValueFuture> calls;
  for (const auto& unsent : t.unsent.all()) {
    if (unsent.call.method != "__init__") calls.push_back(unsent.promise.future());
  }
  for (const auto& [n, sent] : t.sent.all()) calls.push_back(sent.promise.future());
  t.unanswered = calls.size();
  if (calls.empty()) t.kept.clear();
  for (const auto& call : calls) call.then(answered);
}

}  // namespace shoal::actors
