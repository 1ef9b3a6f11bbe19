#include "scheduler/head/commits.h"

#include <algorithm>
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
  Answer answer{std::move(responder), std::move(result), effect, std::exchange(created_, std::nullopt)};
  const bool waits = unsaved_ ? answer.depends() : busy_ || due_ != Due::kNone;
  if (!waits) return answer.responder->answer(std::move(answer.result));
  hold(std::move(answer));
}

void Commits::await(Created created) { hold({std::nullopt, runtime::Message(), actors::Effect::kChange, std::move(created)}); }

void Commits::hold(Answer answer) {
  if (answer.created) {
    if (!answer.created->actors.empty()) unstored_.insert(answer.created->actors.front().value);
    for (const GroupId id : answer.created->groups) unstored_.insert(id.value);
    for (const ActorId id : answer.created->hosted) unstored_.insert(id.value);
  }
  effects_.push_back(std::move(answer));
}

void Commits::retry() {
  if (!unsaved_ || busy_ || fence_.fenced()) return;
  if (const auto refused = writable(); !refused && !refuse_some(refused.error())) {
    refusing_ = clock_.after(runtime::Duration::zero(), [this] { retry(); });  // so that the loop handles other events in between
    return;
  }
  flush();
}

void Commits::answer_readers() {
  for (Effects* effects : {&committing_, &effects_}) {
    for (auto& effect : std::exchange(*effects, {})) {
      auto* const answer = std::get_if<Answer>(&effect);
      if (answer != nullptr && !answer->depends()) {
        answer->responder->answer(std::move(answer->result));
      } else {
        effects->push_back(std::move(effect));
      }
    }
  }
}

std::vector<Commits::Answer> Commits::take_refusable() {
  const auto refusable = [](const Effect& effect) {
    const auto* const answer = std::get_if<Answer>(&effect);
    return answer != nullptr && answer->refusable();
  };
  const auto all = static_cast<std::size_t>(std::ranges::count_if(committing_, refusable) + std::ranges::count_if(effects_, refusable));
  std::size_t left = all - std::min(all, options_.max_refused);
  std::vector<Answer> out;
  for (Effects* effects : {&committing_, &effects_}) {
    for (auto& effect : std::exchange(*effects, {})) {
      if (!refusable(effect)) {
        effects->push_back(std::move(effect));
      } else if (left > 0) {
        --left;
        effects->push_back(std::move(effect));
      } else {
        out.push_back(std::get<Answer>(std::move(effect)));
      }
    }
  }
  return out;
}

bool Commits::refuse_some(const Error& why) {
  auto refused = take_refusable();
  if (refused.empty()) return true;
  Created created;
  for (const auto& answer : refused) {
    if (answer.created) created.add(*answer.created);
  }
  state_.advance(clock_.now(), clock_.unix_millis());
  const Undone undone = state_.step(RequestsUndone{created, why});
  settle();
  for (Effects* effects : {&committing_, &effects_}) {
    std::erase_if(*effects, [&](const Effect& effect) {
      const auto* const action = std::get_if<Action>(&effect);
      if (action == nullptr) return false;
      if (const auto* const start = std::get_if<StartWorkerOn>(action)) return undone.workers.contains(start->message.worker);
      const auto* const hosted = std::get_if<AnswerHosted>(action);
      return hosted != nullptr && undone.hosted.contains(hosted->actor);
    });
  }
  for (const ActorId id : undone.hosted) perform_(AnswerHosted{id, fail(why)});
  for (auto& answer : refused) {
    if (!answer.responder) continue;
    if (answer.created) {
      answer.responder->fail(why);
    } else {
      answer.responder->fail(Error(why.code(), why.message() + "; what was asked for is done once the state can be stored")
                                 .with_reason(why.reason())
                                 .with_hint(why.hint()));
    }
  }
  log_->warn("refused {} requests that waited: {}", refused.size(), why.message());
  return refused.size() < options_.max_refused;
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
  storing_.merge(unstored_);
  unstored_.clear();
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
    const bool first = !unsaved_;
    unsaved_ = Unsaved{result.error(), unsaved_ ? unsaved_->since : clock_.now()};
    if (!first) return;
    log_->warn("state cannot be stored: {}", result.error().message());
    return answer_readers();
  }
  storing_.clear();
  if (std::exchange(unsaved_, std::nullopt)) log_->warn("state is stored again");
  for (auto& effect : std::exchange(committing_, {})) {
    if (const auto* action = std::get_if<Action>(&effect)) {
      perform_(*action);
    } else {
      auto& answer = std::get<Answer>(effect);
      if (answer.responder) answer.responder->answer(std::move(answer.result));
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
