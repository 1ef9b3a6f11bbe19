// Who still refers to which object: processes, on any node, each with a count, and objects that contain references.
//
// Whoever gives a reference away counts for the one who gets it, before he sends it; the receiver only takes off, once, what was counted
// for him. So nothing is freed that is on its way, and no answer is waited for. As the two speak over connections of their own, what is
// taken off may come before what is counted: a count may be below zero for a moment, while the sender's own keeps the object. An object is
// free when somebody had it and nobody has. Pure: no descriptor, no clock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "runtime/core/id.h"

namespace shoal::storage {

class ReferenceTable {
 public:
  struct Object {
    JobId job;
    ObjectId id;
    NodeId home = {};  // of one that another node counts: only objects of this one that contain it are known here
    auto operator<=>(const Object&) const = default;
  };
  using Freed = std::vector<Object>;  // also those that only freed ones contained

  explicit ReferenceTable(std::size_t max_entries = 1 << 20) : max_entries_(max_entries) {}

  // Beyond `max_entries` nothing new is counted: such an object stays until its job ends.
  Freed count(Object object, WorkerId holder, std::int64_t change);
  // References to these lie in that one, as long as it is there.
  void contain(Object outer, const std::vector<Object>& inner);
  std::vector<Object> contained(Object outer) const;
  // It is there no more, whoever counts it.
  Freed drop(Object object);
  Freed worker_gone(WorkerId worker);
  // Objects of other jobs that only its objects contained are freed.
  Freed end_job(JobId job);

  std::vector<WorkerId> holders(Object object) const;
  // Every object that is counted: for which processes, and in how many objects it is contained.
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
  void settle(Object object, Freed& freed);
  void let_go(Object outer, Freed& freed);

  const std::size_t max_entries_;
  std::map<Object, Entry> entries_;
  std::map<Object, std::vector<Object>> contained_;
};

}  // namespace shoal::storage
