#include "actors/session/calls/target_state.h"

#include <utility>

#include <fmt/format.h>

namespace shoal::actors {

using Kind = TargetAction::Kind;

TargetActions TargetState::step(const TargetEvent& event, Facts facts) {
  if (phase_ != Phase::kDead) std::visit([&](const auto& e) { on(e, facts); }, event);
  return std::exchange(actions_, {});
}

void TargetState::on(const ActorRow& row, Facts facts) {
  const bool same_endpoint = row.state == ActorState::kAlive && (endpoint_.empty() || endpoint_ == row.endpoint);
  if (same_endpoint && phase_ != Phase::kEnding) return take(row, facts);
  if (!holds(row, facts)) take(row, facts);
}

void TargetState::on(const ProcessGone& gone, Facts facts) {
  if (phase_ != Phase::kEnding && gone.worker != worker_) return;
  if (!holds(gone, facts)) take(gone, facts);
}

void TargetState::on(const Unknown& unknown, Facts facts) {
  if (!facts.connected) return die(unknown.cause);
  at_head_ = AtHead::kUnknown;
}

void TargetState::on(const ReportsEnded& ended, Facts facts) {
  if (!facts.connected) die(died_of(ended.cause));
}

void TargetState::on(const Constructed&, Facts) {
  constructed_ = true;
  // From now on sent calls may have begun. Copies that may be sent only if no call has begun would just keep values in memory.
  act(Kind::kDropCopies);
}

void TargetState::on(const ConnectionEnded& ended, Facts facts) {
  if (!ended.all_read) on(Constructed(), facts);
  if (phase_ != Phase::kEnding) return;
  act(Kind::kStopGrace);
  release_held(facts);
}

// No report has explained the end of the connection, so the process counts as alive. An actor that the head does not have dies, since no
// report on it will ever come.
void TargetState::on(const RedialDue& due, Facts) {
  if (at_head_ == AtHead::kUnknown) return die(died_of(due.why));
  act(due.unreachable ? Kind::kFailCalls : Kind::kRetryOnReconnection,
      unavailable(fmt::format("the connection to actor {} broke: {}", class_name_, due.why.message()))
          .with_reason("ActorUnavailable")
          .in(frame()));
}

void TargetState::on(const GraceOver&, Facts facts) {
  if (phase_ == Phase::kEnding) {
    constructed_ = true;  // the process may have sent kConstructed in a message that was not read
    release_held(facts);
  } else if (phase_ == Phase::kUndecided) {
    phase_ = Phase::kPending;
    const Error cause = *std::exchange(cause_, {});
    if (facts.reports != Reports::kAll) return die(died_of(cause));  // no head would restart the actor
    process_lost(cause);
  }
}

bool TargetState::holds(Report report, Facts facts) {
  if (phase_ != Phase::kEnding) {
    if (!facts.connected) return false;
    phase_ = Phase::kEnding;
    act(Kind::kStartGrace);
  }
  held_.push_back(std::move(report));
  return true;
}

void TargetState::release_held(Facts facts) {
  phase_ = Phase::kPlaced;
  for (const Report& report : std::exchange(held_, {})) {
    if (phase_ != Phase::kDead) std::visit([&](const auto& r) { take(r, facts); }, report);
  }
}

void TargetState::take(const ActorRow& row, Facts) {
  worker_ = row.worker;
  node_ = row.node;
  retries_ = row.max_task_retries;
  if (at_head_ != AtHead::kUnknown) at_head_ = row.max_restarts != 0 ? AtHead::kMayRestart : AtHead::kEndsWithProcess;
  const bool moved = row.state == ActorState::kAlive && endpoint_ != row.endpoint;
  if (phase_ != Phase::kPending && (row.state == ActorState::kRestarting || moved)) {
    if (phase_ == Phase::kUndecided) act(Kind::kStopGrace);
    phase_ = Phase::kPending;
    process_lost(row.cause.value_or(unavailable("its process ended")));
  }
  if (row.state == ActorState::kDead) return die(row.cause.value_or(died_of(unavailable("the head reported no cause"))));
  if (row.state != ActorState::kAlive || phase_ != Phase::kPending) return;
  endpoint_ = row.endpoint;
  phase_ = Phase::kPlaced;
  act(Kind::kConnect);
}

void TargetState::take(const ProcessGone& gone, Facts facts) {
  if (gone.worker != worker_) return;
  if (at_head_ != AtHead::kMayRestart || facts.reports == Reports::kNone) return die(died_of(gone.cause));
  endpoint_.clear();
  phase_ = Phase::kUndecided;
  cause_ = gone.cause;
  act(Kind::kStartGrace);
}

void TargetState::process_lost(const Error& cause) {
  endpoint_.clear();
  // The next process has to construct the actor anew, so no call has begun there.
  act(std::exchange(constructed_, false) ? Kind::kRetryOnNextProcess : Kind::kRequeueUnbegun,
      unavailable(fmt::format("actor {} is not available now, its process is restarted: {}", class_name_, cause.message()))
          .with_reason("ActorUnavailable")
          .in(frame()));
}

void TargetState::die(const Error& cause) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kUndecided) act(Kind::kStopGrace);
  held_.clear();
  phase_ = Phase::kDead;
  cause_ = cause;
  act(Kind::kDie, cause);
}

std::string TargetState::frame() const { return fmt::format("actor {}({})", class_name_, to_string(id_)); }

Error TargetState::died_of(const Error& why) const {
  return unavailable(fmt::format("actor {} died: ", class_name_))
      .because(why)
      .with_reason(why.reason() == kOutOfMemory ? why.reason() : "ActorDied")
      .with_hint(why.hint())
      .in(frame());
}

const char* to_string(TargetAction::Kind kind) {
  switch (kind) {
    case Kind::kConnect:
      return "Connect";
    case Kind::kStartGrace:
      return "StartGrace";
    case Kind::kStopGrace:
      return "StopGrace";
    case Kind::kDropCopies:
      return "DropCopies";
    case Kind::kRequeueUnbegun:
      return "RequeueUnbegun";
    case Kind::kRetryOnNextProcess:
      return "RetryOnNextProcess";
    case Kind::kRetryOnReconnection:
      return "RetryOnReconnection";
    case Kind::kFailCalls:
      return "FailCalls";
    case Kind::kDie:
      return "Die";
  }
  return "";
}

const char* to_string(TargetState::Phase phase) {
  switch (phase) {
    case TargetState::Phase::kPending:
      return "pending";
    case TargetState::Phase::kPlaced:
      return "placed";
    case TargetState::Phase::kEnding:
      return "ending";
    case TargetState::Phase::kUndecided:
      return "undecided";
    case TargetState::Phase::kDead:
      return "dead";
  }
  return "";
}

}  // namespace shoal::actors
