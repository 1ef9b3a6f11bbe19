#include "actors/session/references/call_book.h"

#include "actors/protocol/cluster/rows.h"

#include <algorithm>
#include <array>

namespace shoal::actors {

namespace {
constexpr std::uint32_t kFailed = 1;  // index of the name FAILED in names_
}

CallBook::Entry CallBook::taken(const Call& call, WorkerId caller, bool waits) {
  if (free_ == nullptr) free_ = &running_.emplace_back();
  const Entry entry = free_;
  free_ = std::exchange(entry->next_free, nullptr);
  entry->taken = true;
  entry->record = {call.task, caller, call.actor, 0, 0, name(call.method, call.function_name()), 0};
  entry->start.store(waits ? 0 : now(), std::memory_order_relaxed);
  return entry;
}

void CallBook::began(Entry entry) {
  if (entry != nullptr) entry->start.store(now(), std::memory_order_relaxed);
}

void CallBook::ended(Entry entry, std::string_view failure) {
  if (entry == nullptr || !entry->taken) return;
  Record& r = entry->record;
  r.end = now();
  r.start = entry->start.load(std::memory_order_relaxed);
  if (r.start == 0) r.start = r.end;
  if (!failure.empty()) r.failure = name_of_failure(failure);
  if (ended_.size() <= r.name) ended_.resize(r.name + 1);
  ++(failure.empty() ? ended_[r.name].first : ended_[r.name].second);
  ran_.ring_for(r).keep(r);
  entry->taken = false;
  entry->next_free = std::exchange(free_, entry);
}

void CallBook::over(const Over& o) {
  const Record record = {o.number,
                         o.caller,
                         o.actor,
                         o.start.time_since_epoch().count(),
                         o.end.time_since_epoch().count(),
                         o.name,
                         o.failure.empty() ? 0 : name_of_failure(o.failure)};
  (task_of_pool(o.number) ? functions_ : others_).ring_for(record).keep(record);
}

std::uint32_t CallBook::name(std::string_view method, std::string_view function) {
  const auto& last = names_[last_name_];
  if (last.first == method && last.second == function) return last_name_;
  if (const auto known = by_name_.find({method, function}); known != by_name_.end()) return last_name_ = known->second;
  if (names_.size() >= kMaxNames || method.size() + function.size() > kMaxNameBytes) return 0;
  const auto& [m, f] = names_.emplace_back(method, function);
  last_name_ = static_cast<std::uint32_t>(names_.size() - 1);
  by_name_.emplace(std::pair<std::string_view, std::string_view>(m, f), last_name_);
  return last_name_;
}

std::uint32_t CallBook::name_of_failure(std::string_view failure) {
  const auto last = last_name_;
  const auto out = name(failure, "");
  last_name_ = last;
  return std::max(out, kFailed);
}

void CallBook::Ring::keep(const Record& record) {
  ++kept_;
  if (records_.size() < kMaxEnded) {
    records_.push_back(record);
    return;
  }
  records_[next_] = record;
  next_ = (next_ + 1) % kMaxEnded;
}

const CallBook::Record* CallBook::Ring::newest(std::size_t i) const {
  return i < records_.size() ? &records_[(next_ + records_.size() - 1 - i) % records_.size()] : nullptr;
}

TaskReport CallBook::reported(const Record& r, std::int64_t unix_offset_us) const {
  const auto unix_us = [&](std::int64_t ns) { return ns == 0 ? 0 : ns / 1000 + unix_offset_us; };
  const TaskState state = r.end != 0     ? r.failure != 0 ? TaskState::kFailed : TaskState::kFinished
                          : r.start != 0 ? TaskState::kRunning
                                         : TaskState::kPendingTurn;
  const auto& [method, function] = names_[r.name];
  return {r.number, r.caller, r.actor, method, function, state, unix_us(r.start), unix_us(r.end), names_[r.failure].first};
}

std::int64_t CallBook::unix_offset_us() const { return clock_.unix_millis() * 1000 - now() / 1000; }

std::uint64_t CallBook::report_running(std::vector<TaskReport>& out, std::size_t limit) const {
  const std::int64_t offset = unix_offset_us();
  std::uint64_t more = 0;
  for (const Running& r : running_) {
    if (!r.taken) continue;
    if (out.size() >= limit) {
      ++more;
      continue;
    }
    Record record = r.record;
    record.start = r.start.load(std::memory_order_relaxed);
    out.push_back(reported(record, offset));
  }
  return more;
}

std::string CallBook::measured(std::uint32_t name) const {
  if (name == 0 || name > kMaxMeasured) return "(others)";
  const auto& [method, function] = names_[name];
  return function.empty() ? method : function;
}

void CallBook::Counts::note(TaskState state, const CallBook& book, std::uint32_t name, std::uint64_t calls) {
  calls_[{state, book.measured(name)}] += calls;
}

void CallBook::measure(Counts counts, std::vector<MetricFamily>& out) const {
  for (const Running& r : running_) {
    if (r.taken)
      counts.note(r.start.load(std::memory_order_relaxed) != 0 ? TaskState::kRunning : TaskState::kPendingTurn, *this, r.record.name);
  }
  FamilyOf now(MetricKind::kLevel, "shoal_tasks",
               "Calls of methods and remote functions that wait to be sent, wait for their turn, or run.");
  FamilyOf sent(MetricKind::kLevel, "shoal_tasks_unanswered",
                "Calls that were sent and not answered yet: they are on their way, wait at their worker, or run.");
  for (const auto& [what, calls] : counts.calls_) {
    if (what.first == TaskState::kSubmitted) {
      sent.add(static_cast<double>(calls), {{"name", what.second}});
    } else {
      now.add(static_cast<double>(calls), {{"name", what.second}, {"state", to_string(what.first)}});
    }
  }
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> ended;
  for (std::uint32_t name = 0; name < ended_.size(); ++name) {
    if (ended_[name] == std::pair<std::uint64_t, std::uint64_t>()) continue;
    auto& [finished, failed] = ended[measured(name)];
    finished += ended_[name].first;
    failed += ended_[name].second;
  }
  FamilyOf over(MetricKind::kCounter, "shoal_tasks_ended_total", "Calls that workers ran to an end, without those whose worker died.");
  for (const auto& [name, n] : ended) {
    over.add(static_cast<double>(n.first), {{"name", name}, {"state", to_string(TaskState::kFinished)}});
    over.add(static_cast<double>(n.second), {{"name", name}, {"state", to_string(TaskState::kFailed)}});
  }
  for (MetricFamily family : {MetricFamily(std::move(now)), MetricFamily(std::move(sent)), MetricFamily(std::move(over))}) {
    if (!family.samples.empty()) out.push_back(std::move(family));
  }
}

std::uint64_t CallBook::report_over(std::vector<TaskReport>& out, std::size_t limit) const {
  const std::int64_t offset = unix_offset_us();
  std::uint64_t ended = 0;
  const std::size_t others = out.size();
  for (const auto outcome : {&Outcomes::failed, &Outcomes::finished}) {
    std::array<std::pair<const Ring*, std::size_t>, 3> rings = {
        {{&(ran_.*outcome), 0}, {&(functions_.*outcome), 0}, {&(others_.*outcome), 0}}};
    for (const auto& [ring, at] : rings) ended += ring->num_kept();
    while (out.size() < limit) {
      const Record* last = nullptr;
      std::size_t* reported_of = nullptr;
      for (auto& [ring, at] : rings) {
        const Record* const record = ring->newest(at);
        if (record == nullptr || (last != nullptr && last->end >= record->end)) continue;
        last = record;
        reported_of = &at;
      }
      if (last == nullptr) break;
      ++*reported_of;
      out.push_back(reported(*last, offset));
    }
  }
  return ended - (out.size() - others);
}

std::string_view kind_of_failure(const Error& error) {
  if (error.reason() == "TaskCancelled" || error.reason() == "CallerGone") return "TASK_CANCELLED";
  if (error.reason() == "WorkerCrashed") return kWorkerDied;
  if (error.reason() == kOutOfMemory) return "OUT_OF_MEMORY";
  if (error.reason() == "ActorDied") return "ACTOR_DIED";
  if (error.reason() == "ActorUnavailable") return "ACTOR_UNAVAILABLE";
  if (error.reason() == "OwnerDied") return "OWNER_DIED";
  if (error.reason() == "Unschedulable") return "ACTOR_UNSCHEDULABLE_ERROR";
  if (error.reason() == "TaskUnschedulable") return "TASK_UNSCHEDULABLE_ERROR";
  return error.reason().empty() ? std::string_view(code_name(error.code())) : std::string_view(error.reason());
}

}  // namespace shoal::actors
