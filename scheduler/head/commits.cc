#include "scheduler/head/commits.h"

#include <ranges>
#include <utility>

#include "actors/protocol/cluster/row_bounds.h"

namespace shoal::scheduler {

namespace {
constexpr std::chrono::milliseconds kMoment(1);  // wait of a commit whose result no caller awaits
}  // namespace

Commits::Commits(runtime::Clock& clock, ClusterState& state, Store& store, Fence& fence, runtime::Log log, Options options,
                 std::function<void(const Action&)> perform)
    : clock_(clock), state_(state), store_(store), fence_(fence), log_(std::move(log)), options_(options), perform_(std::move(perform)) {}

void Commits::answer(actors::Effect effect, runtime::Responder responder, Result<runtime::Message> result) {
  const bool waits = unsaved_ ? effect != actors::Effect::kNone && result : busy_ || due_ != Due::kNone;
  if (!waits) return responder.answer(std::move(result));
  effects_.push_back(Answer{std::move(responder), std::move(result), effect, std::exchange(undo_, {})});
}

std::vector<WorkerId> Commits::drop_starts(const std::function<bool(const actors::StartWorker&)>& these) {
  for (auto& action : state_.take_actions()) effects_.emplace_back(std::move(action));  // an undo before may have started others
  std::vector<WorkerId> out;
  for (Effects* effects : {&committing_, &effects_}) {
    std::erase_if(*effects, [&](const auto& effect) {
      const auto* const action = std::get_if<Action>(&effect);
      const auto* const start = action == nullptr ? nullptr : std::get_if<StartWorkerOn>(action);
      if (start == nullptr || !these(start->message)) return false;
      out.push_back(start->message.worker);
      return true;
    });
  }
  return out;
}

void Commits::retry() {
  if (!unsaved_) return;
  if (const auto refused = writable(); !refused && !busy_) refuse_waiting(refused.error());
  flush();
}

void Commits::refuse_waiting(const Error& why) {
  std::vector<Answer> waiting;
  for (Effects* effects : {&committing_, &effects_}) {
    for (auto& effect : std::exchange(*effects, {})) {
      auto* const answer = std::get_if<Answer>(&effect);
      if (answer != nullptr && answer->effect == actors::Effect::kChange && answer->result) {
        waiting.push_back(std::move(*answer));
      } else {
        effects->push_back(std::move(effect));
      }
    }
  }
  // The latest first: room that an undo frees goes to no request that is undone next.
  for (auto& answer : std::views::reverse(waiting)) {
    if (answer.undo) {
      answer.undo(why);
      answer.responder.fail(why);
    } else {
      answer.responder.fail(Error(why.code(), why.message() + "; what was asked for is done once the state can be stored")
                                .with_reason(why.reason())
                                .with_hint(why.hint()));
    }
  }
  if (!waiting.empty()) log_->warn("refused {} requests that waited: {}", waiting.size(), why.message());
  settle();
}

void Commits::settle(Awaited awaited) {
  for (auto& action : state_.take_actions()) effects_.emplace_back(std::move(action));
  if (busy_ || unsaved_ || (effects_.empty() && !state_.changed())) return;
  const Due due = awaited == Awaited::kYes ? Due::kSoon : Due::kInAMoment;
  if (due_ >= due) return;
  due_ = due;  // not at once, so that other events join the commit
  flushing_ = clock_.after(due == Due::kSoon ? runtime::Duration::zero() : kMoment, [this] { flush(); });
}

void Commits::flush() {
  due_ = Due::kNone;
  if (busy_ || fence_.fenced()) return;
  auto records = state_.take_changes();
  for (const auto& r : records) {
    if (r.bytes.size() <= actors::RowBounds::kMaxRecord) continue;  // events are checked, so that rows stay within their bounds
    log_->error("row table={} id={:016x} has {} bytes, and the next head may set it aside", to_string(r.table), r.id, r.bytes.size());
  }
  if (records.empty() && effects_.empty()) return;
  busy_ = true;
  for (auto& effect : std::exchange(effects_, {})) committing_.push_back(std::move(effect));
  if (records.empty() && !unsaved_) return committed({}, {});
  const auto kept = std::make_shared<std::vector<Record>>(std::move(records));
  store_.commit(*kept, [this, alive = alive_, kept](const Result<void>& r) {
    if (*alive) committed(*kept, r);
  });
}

void Commits::committed(const std::vector<Record>& records, const Result<void>& result) {
  if (!result && result.error().reason() == "Fenced") fence_.fence(result.error().message());
  if (fence_.fenced()) return;  // the actions and answers of this commit do not take place
  if (!result) {
    state_.change_again(records);
    busy_ = false;
    if (!unsaved_) log_->warn("state cannot be stored: {}", result.error().message());
    unsaved_ = Unsaved{result.error(), unsaved_ ? unsaved_->since : clock_.now()};
    return;
  }
  if (std::exchange(unsaved_, std::nullopt)) log_->warn("state is stored again");
  for (auto& effect : std::exchange(committing_, {})) {
    if (const auto* action = std::get_if<Action>(&effect)) {
      perform_(*action);
    } else {
      auto& answer = std::get<Answer>(effect);
      answer.responder.answer(std::move(answer.result));
    }
  }
  busy_ = false;
  settle();  // actions may have caused new events
}

Result<void> Commits::writable() const {
  if (!unsaved_ || clock_.now() - unsaved_->since < options_.refuse_after) return {};
  return fail(Error(unsaved_->why.code() == Code::kResourceExhausted ? Code::kResourceExhausted : Code::kUnavailable,
                    "the head cannot store its state, and therefore makes no decisions: " + unsaved_->why.message())
                  .with_reason("NotDurable")
                  .with_hint(unsaved_->why.hint()));
}

}  // namespace shoal::scheduler
