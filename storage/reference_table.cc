#include "storage/reference_table.h"

#include <algorithm>

namespace shoal::storage {

bool ReferenceTable::Entry::held() const {
  return objects > 0 || std::any_of(processes.begin(), processes.end(), [](const auto& p) { return p.second > 0; });
}

ReferenceTable::Freed ReferenceTable::count(Object object, WorkerId holder, std::int64_t change) {
  Freed freed;
  if (is_uncounted(object) || (!entries_.contains(object) && entries_.size() >= max_entries_)) {
    if (uncounted_.size() < max_entries_) uncounted_.insert(object);
    return freed;
  }
  auto& processes = entries_[object].processes;
  if ((processes[holder] += change) == 0) processes.erase(holder);
  settle(object, freed);
  return freed;
}

// Once uncounted_ is full, some uncounted objects are not in it: then every unknown object counts as uncounted.
bool ReferenceTable::is_uncounted(Object object) const {
  return uncounted_.contains(object) || (uncounted_.size() >= max_entries_ && !entries_.contains(object));
}

Result<void> ReferenceTable::contain(Object outer, const std::vector<Object>& inner) {
  if (inner.empty() || contained_.contains(outer)) return {};
  std::set<Object> added;
  for (const Object& object : inner) {
    if (!entries_.contains(object) && !uncounted_.contains(object)) added.insert(object);
  }
  if (contained_.size() >= max_entries_ || entries_.size() + added.size() > max_entries_)
    return fail(resource_exhausted("this node counts too many references between objects"));
  contained_[outer] = inner;
  for (const Object& object : inner) {
    if (uncounted_.contains(object)) continue;
    Entry& entry = entries_[object];
    ++entry.objects;
    entry.was_held = true;
  }
  return {};
}

std::vector<ReferenceTable::Object> ReferenceTable::contained(Object outer) const {
  const auto it = contained_.find(outer);
  return it == contained_.end() ? std::vector<Object>() : it->second;
}

// Iterates over `freed` instead of recursing, so that long chains of contained objects need no deep stack.
void ReferenceTable::settle(Object object, Freed& freed) {
  std::size_t next = freed.size();
  const auto visit = [&](Object at) {
    const auto it = entries_.find(at);
    if (it == entries_.end()) return;
    Entry& entry = it->second;
    const bool held = entry.held();
    entry.was_held |= held;
    if (held || (!entry.was_held && !entry.processes.empty())) return;
    if (entry.was_held) freed.push_back(at);
    entries_.erase(it);
  };
  visit(object);
  for (; next < freed.size(); ++next) {
    const auto inner = contained_.extract(freed[next]);
    if (inner.empty()) continue;
    for (const Object& o : inner.mapped()) {
      if (const auto it = entries_.find(o); it != entries_.end()) --it->second.objects;
      visit(o);
    }
  }
}

void ReferenceTable::let_go(Object outer, Freed& freed) {
  const auto inner = contained_.extract(outer);
  if (inner.empty()) return;
  for (const Object& o : inner.mapped()) {
    if (const auto it = entries_.find(o); it != entries_.end()) --it->second.objects;
    settle(o, freed);
  }
}

ReferenceTable::Freed ReferenceTable::drop(Object object) {
  Freed freed;
  entries_.erase(object);
  let_go(object, freed);
  return freed;
}

ReferenceTable::Freed ReferenceTable::worker_gone(WorkerId worker) {
  std::vector<Object> touched;
  for (auto& [object, entry] : entries_) {
    if (entry.processes.erase(worker) > 0) touched.push_back(object);
  }
  Freed freed;
  for (const Object& object : touched) settle(object, freed);
  return freed;
}

ReferenceTable::Freed ReferenceTable::end_job(JobId job) {
  const Object first{job, {}, {}};
  std::vector<Object> outer;
  for (auto it = contained_.lower_bound(first); it != contained_.end() && it->first.job == job; ++it) outer.push_back(it->first);
  Freed freed;
  for (const Object& object : outer) let_go(object, freed);
  auto it = entries_.lower_bound(first);
  while (it != entries_.end() && it->first.job == job) it = entries_.erase(it);
  auto other = uncounted_.lower_bound(first);
  while (other != uncounted_.end() && other->job == job) other = uncounted_.erase(other);
  return freed;
}

std::vector<WorkerId> ReferenceTable::holders(Object object) const {
  std::vector<WorkerId> out;
  const auto it = entries_.find(object);
  if (it == entries_.end()) return out;
  for (const auto& [worker, n] : it->second.processes) {
    if (n > 0) out.push_back(worker);
  }
  return out;
}

}  // namespace shoal::storage
