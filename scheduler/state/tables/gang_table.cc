#include "scheduler/state/tables/gang_table.h"

#include <utility>

namespace shoal::scheduler {

using rows::Gang;

void GangTable::request(GangId id, Gang gang) {
  if (gang.spec.creator) by_creator_[gang.spec.creator].insert(id);
  add(id) = std::move(gang);
}

int GangTable::count_end(GangId id, runtime::TimePoint now, runtime::Duration early) {
  Gang& gang = scratch(id);
  gang.early_deaths = now - gang.started < early ? gang.early_deaths + 1 : 0;
  return gang.early_deaths;
}

void GangTable::forget(GangId id) {
  const auto created = by_creator_.find(at(id).spec.creator);
  if (created != by_creator_.end() && created->second.erase(id) > 0 && created->second.empty()) by_creator_.erase(created);
  erase(id);
}

void GangTable::restored(GangId id, std::size_t living, runtime::TimePoint now) {
  Gang& gang = scratch(id);
  for (const auto& a : gang.spec.actors) gang.wants.push_back(a.resources);
  gang.living = living;
  gang.started = now;
  if (gang.spec.creator) by_creator_[gang.spec.creator].insert(id);
}

std::set<GangId> GangTable::take_created_by(WorkerId creator) {
  auto created = by_creator_.extract(creator);
  return created ? std::move(created.mapped()) : std::set<GangId>();
}

void GangTable::set_creator(GangId id, WorkerId creator) {
  if (at(id).spec.creator != creator) edit(id).spec.creator = creator;
  if (creator) by_creator_[creator].insert(id);
}

}  // namespace shoal::scheduler
