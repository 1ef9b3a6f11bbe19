#include "scheduler/node/peers/changes.h"

#include <map>
#include <set>
#include <tuple>

namespace shoal::scheduler {

using Change = actors::CountObjects::Change;

// Additions come before all requests (kCountContents, kWatch), removals after them. So a request finds its object still held, for instance
// when it counts what the object contains.
std::deque<Change> merged(const std::deque<Change>& waiting) {
  std::map<std::tuple<actors::ObjectKey, WorkerId, NodeId>, std::int64_t> counts;
  std::set<WorkerId> watched, gone;
  std::deque<Change> added, requested, taken_off, deaths;
  for (const Change& change : waiting) {
    switch (change.kind) {
      case Change::Kind::kCount:
        counts[{change.object, change.holder, change.holder_node}] += change.by;
        break;
      case Change::Kind::kCountContents:
        requested.push_back(change);
        break;
      case Change::Kind::kWatch:
        if (watched.insert(change.holder).second) requested.push_back(change);
        break;
      case Change::Kind::kGone:
        if (gone.insert(change.holder).second) deaths.push_back(change);
        break;
    }
  }
  for (const auto& [key, by] : counts) {
    const auto& [object, holder, node] = key;
    if (by != 0) (by > 0 ? added : taken_off).push_back({object, holder, by, node, Change::Kind::kCount});
  }
  for (auto* const part : {&requested, &taken_off, &deaths}) added.insert(added.end(), part->begin(), part->end());
  return added;
}

}  // namespace shoal::scheduler
