#include "actors/session/clients/group_watch.h"

#include <utility>

namespace shoal::actors {

ValueFuture GroupWatch::ready(GroupId group, Value value) {
  const runtime::Promise<Value> promise;
  Group& g = groups_[group];
  if (g.created) {
    promise.set(std::move(value));
  } else {
    g.waiting.push_back({promise, std::move(value)});
  }
  return promise.future();
}

std::vector<GroupId> GroupWatch::expected() const {
  std::vector<GroupId> out;
  for (const auto& [id, g] : groups_) out.push_back(id);
  return out;
}

void GroupWatch::updated(const GroupRow& row) {
  const auto it = groups_.find(row.id);
  if (it == groups_.end()) return;
  if (row.state == GroupState::kRemoved)
    return unknown(row.id, row.cause.value_or(cancelled("the placement group was removed").with_reason("GroupRemoved")));
  it->second.created = row.state == GroupState::kCreated;
  if (!it->second.created) return;
  for (auto& w : std::exchange(it->second.waiting, {})) w.promise.set(std::move(w.value));
}

void GroupWatch::unknown(GroupId group, const Error& cause) {
  const auto gone = groups_.extract(group);
  if (!gone) return;
  for (const auto& w : gone.mapped().waiting) w.promise.set(fail(cause));
}

}  // namespace shoal::actors
