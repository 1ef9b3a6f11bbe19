#include "actors/session/calls/targets.h"

#include <algorithm>

namespace shoal::actors {

namespace {

bool any_open_call(const Target& t, const CallBook* book) {
  const auto is_open = [](std::string_view method) { return !method.starts_with(kOurs); };
  const auto& unsent = t.unsent.all();
  const auto& sent = t.sent.all();
  return std::any_of(unsent.begin(), unsent.end(), [&](const UnsentCall& c) { return is_open(c.call.method); }) ||
         std::any_of(sent.begin(), sent.end(), [&](const auto& s) { return book == nullptr || is_open(book->named(s.second.name).first); });
}

TaskState state_of(const UnsentCall& call, const Target& t) {
  return call.waits_for_arguments()   ? TaskState::kPendingArguments
         : t.state.endpoint().empty() ? TaskState::kPendingPlace
                                      : TaskState::kPendingTurn;
}

}  // namespace

void CallNotes::failed(ActorId actor, std::uint64_t task, std::uint32_t name, const Error& cause) const {
  if (book == nullptr || task_of_pool(task)) return;
  book->over({task, self, actor, name, {}, clock.now(), kind_of_failure(cause)});
}

void Targets::expect(ActorId actor, const std::string& class_name) {
  if (const auto [it, added] = targets_.try_emplace(actor); added) it->second.state = TargetState(actor, class_name);
  while (dead_.size() > max_dead_) {
    targets_.erase(dead_.front());
    dead_.pop_front();
    forgot_ = true;
  }
}

Target* Targets::find(ActorId actor) {
  const auto it = targets_.find(actor);
  return it == targets_.end() ? nullptr : &it->second;
}

std::vector<ActorId> Targets::ids() const {
  std::vector<ActorId> out;
  out.reserve(targets_.size());
  for (const auto& [id, target] : targets_) out.push_back(id);
  return out;
}

std::map<ActorId, Target>::node_type Targets::remove(ActorId actor) {
  std::erase(dead_, actor);
  return targets_.extract(actor);
}

bool Targets::any_at(const std::string& endpoint) const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    return entry.second.state.endpoint() == endpoint && entry.second.state.phase() != TargetState::Phase::kDead;
  });
}

std::vector<ActorId> Targets::expected() const {
  std::vector<ActorId> out;
  for (const auto& [id, t] : targets_) {
    if (t.state.phase() != TargetState::Phase::kDead) out.push_back(id);
  }
  return out;
}

NodeId Targets::node(ActorId actor) const {
  const Target* const t = find(actor);
  return t == nullptr ? NodeId() : t->state.node();
}

WorkerId Targets::worker(ActorId actor) const {
  const Target* const t = find(actor);
  return t == nullptr ? WorkerId() : t->state.worker();
}

bool Targets::alive(ActorId actor) const {
  const Target* const t = find(actor);
  return t != nullptr && t->state.phase() != TargetState::Phase::kDead && !t->state.endpoint().empty();
}

const Error* Targets::cause(ActorId actor) const {
  const Target* const t = find(actor);
  return t == nullptr ? nullptr : t->state.cause_of_death();
}

bool Targets::waits_for_nobody(ActorId actor) const {
  const Target* const t = find(actor);
  if (t == nullptr || t->state.phase() == TargetState::Phase::kDead) return false;
  const auto& unsent = t->unsent.all();
  const auto is_ours = [](const UnsentCall& c) { return c.call.method == "__init__" || c.call.method == kRelease; };
  if (!std::all_of(unsent.begin(), unsent.end(), is_ours)) return false;
  return waits_for_arguments(actor) || (!t->state.worker() && t->state.endpoint().empty());
}

bool Targets::waits_for_arguments(ActorId actor) const {
  const Target* const t = find(actor);
  if (t == nullptr || t->unsent.empty()) return false;
  const UnsentCall& first = t->unsent.all().front();
  return first.call.method == "__init__" && first.waits_for_arguments();
}

bool Targets::any_open() const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) { return any_open_call(entry.second, notes_.book); });
}

bool Targets::any_open(ActorId actor) const {
  const Target* const t = find(actor);
  return t != nullptr && any_open_call(*t, notes_.book);
}

bool Targets::pending(const ValueFuture& result) const {
  return std::any_of(targets_.begin(), targets_.end(), [&](const auto& entry) {
    const Target& t = entry.second;
    return t.unsent.find(result) < t.unsent.size() || t.sent.find(result) != nullptr;
  });
}

std::vector<ValueFuture> Targets::children(CallKey parent) const {
  std::vector<ValueFuture> out;
  for (const auto& [id, t] : targets_) {
    for (const UnsentCall& c : t.unsent.all()) {
      if (c.call.parent == parent) out.push_back(c.promise.future());
    }
    for (const auto& [n, sent] : t.sent.all()) {
      if (sent.parent == parent) out.push_back(sent.promise.future());
    }
  }
  return out;
}

std::uint64_t Targets::report(std::vector<TaskReport>& out, std::size_t limit) const {
  std::uint64_t all = 0;
  const std::size_t before = out.size();
  for (const auto& [id, t] : targets_) {
    all += t.unsent.size() + t.sent.size();
    for (const UnsentCall& c : t.unsent.all()) {
      if (out.size() >= limit) break;
      out.push_back({c.call.task, notes_.self, id, c.call.method, std::string(c.call.function_name()), state_of(c, t), 0, 0, {}});
    }
    for (const auto& [n, sent] : t.sent.all()) {
      if (out.size() >= limit) break;
      const auto& [method, function] = notes_.book->named(sent.name);
      out.push_back({sent.task, notes_.self, id, method, function, TaskState::kSubmitted, 0, 0, {}});
    }
  }
  return all - (out.size() - before);
}

void Targets::count(CallBook::Counts& counts) const {
  if (notes_.book == nullptr) return;
  std::map<std::pair<TaskState, std::uint32_t>, std::uint64_t> calls;
  for (const auto& [id, t] : targets_) {
    for (const UnsentCall& c : t.unsent.all()) ++calls[{state_of(c, t), notes_.name_of(c.call)}];
    for (const auto& [n, sent] : t.sent.all()) ++calls[{TaskState::kSubmitted, sent.name}];
  }
  for (const auto& [what, n] : calls) counts.note(what.first, *notes_.book, what.second, n);
}

}  // namespace shoal::actors
