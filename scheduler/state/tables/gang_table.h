// Gangs that have a living member, and the process that made each.
#pragma once

#include <map>
#include <set>

#include "scheduler/state/tables/rows.h"
#include "scheduler/state/tables/table.h"

namespace shoal::scheduler {

class GangTable : public Table<GangId, rows::Gang> {
 public:
  void request(GangId id, rows::Gang gang);
  void start(GangId id, runtime::TimePoint now) { scratch(id).started = now; }
  // A member died for good. Returns true for the last one; the caller forgets the gang.
  bool lose_member(GangId id) { return --scratch(id).living == 0; }
  // A process of the gang ended. Returns the number of consecutive ends within `early` of a start.
  int count_end(GangId id, runtime::TimePoint now, runtime::Duration early);
  void forget(GangId id);
  // Computes the part of a restored row that is not stored (rows.h). `living`: the number of members that are not dead.
  void restored(GangId id, std::size_t living, runtime::TimePoint now);

  // ---- creators
  const std::map<WorkerId, std::set<GangId>>& by_creator() const { return by_creator_; }
  // Removes and returns the gangs that a process made. They have no creator until set_creator().
  std::set<GangId> take_created_by(WorkerId creator);
  void set_creator(GangId id, WorkerId creator);

 private:
  std::map<WorkerId, std::set<GangId>> by_creator_;
};

}  // namespace shoal::scheduler
