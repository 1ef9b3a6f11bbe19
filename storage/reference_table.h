// Reference counts of objects: one count per process, on any node, and one for the objects that contain references.
//
// The sender of a reference increments the receiver's count before it sends; the receiver only decrements its count, once. So an object
// under way is never freed, and no process waits for an answer. Sender and receiver use different connections, so a decrement may arrive
// before its increment. The count is negative then for a moment, while the sender's own count keeps the object. An object is freed once it
// had holders and has none left. Pure: no descriptor, no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::storage {

class ReferenceTable {
 public:
  struct Object {
    JobId job;
    ObjectId id;
    // For another node's object, its home. This table then counts only the objects of this node that contain it.
    NodeId home = {};
    auto operator<=>(const Object&) const = default;
  };
  using Freed = std::vector<Object>;  // the objects that are free now, and those that only they contained

  explicit ReferenceTable(std::size_t max_entries = 1 << 20) : max_entries_(max_entries) {}

  // Changes a process's count of an object, and returns the objects that are free now. A full table (`max_entries`) does not count new
  // objects: these stay until their job ends, even if there is room later.
  Freed count(Object object, WorkerId holder, std::int64_t change);
  // Records that `outer` contains references to `inner`, as long as it exists. Returns ResourceExhausted, and records nothing, if the table
  // has no room for new inner objects, or for one more object that contains others. The caller must not keep `outer` then.
  Result<void> contain(Object outer, const std::vector<Object>& inner);
  std::vector<Object> contained(Object outer) const;
  // Removes an object whatever its counts are.
  Freed drop(Object object);
  Freed worker_gone(WorkerId worker);
  // Removes the job's objects. Returns objects of other jobs that only they contained.
  Freed end_job(JobId job);

  std::vector<WorkerId> holders(Object object) const;
  // Calls `see` for every counted object, with its counts per process and the number of objects that contain it.
  void each(const std::function<void(Object object, const std::map<WorkerId, std::int64_t>& processes, std::int64_t objects)>& see) const {
    for (const auto& [object, entry] : entries_) see(object, entry.processes, entry.objects);
  }
  bool knows(Object object) const { return entries_.contains(object); }
  std::size_t num_entries() const { return entries_.size(); }

 private:
  struct Entry {
    std::map<WorkerId, std::int64_t> processes;
    std::int64_t objects = 0;
    bool was_held = false;
    bool held() const;
  };
  bool is_uncounted(Object object) const;
  void settle(Object object, Freed& freed);
  void let_go(Object outer, Freed& freed);

  const std::size_t max_entries_;
  std::map<Object, Entry> entries_;
  std::map<Object, std::vector<Object>> contained_;
  std::set<Object> uncounted_;  // objects for whose counts there was no room; at most max_entries_
};

}  // namespace shoal::storage
