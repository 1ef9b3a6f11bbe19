// The end of what requests have made and the head could not store: nothing of it was performed or published.
#include <set>

#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

namespace {

// One pass for all entries, since thousands may wait.
void drop_entries(Parts& s, const Created& created) {
  std::set<GangId> gangs;
  for (const ActorId id : created.actors) {
    if (const auto* const row = s.actors.living(id)) gangs.insert(row->gang);
  }
  const std::set<JobId> jobs(created.jobs.begin(), created.jobs.end());
  const std::set<GroupId> groups(created.groups.begin(), created.groups.end());
  s.queue.drop([&](const Pending& p) { return gangs.contains(p.gang) || jobs.contains(p.job) || groups.contains(p.group); });
}

void undo_start(Parts& s, WorkerId worker, const Error& why, Undone& out) {
  out.workers.insert(worker);
  on(s, WorkerNotStarted{worker, 126, why});
}

void undo(Parts& s, const Created& created, const Error& why, Undone& out) {
  drop_entries(s, created);
  std::vector<WorkerId> starts;
  for (const ActorId id : created.actors) {
    const auto* const row = s.actors.living(id);
    if (row == nullptr) continue;
    if (row->worker) starts.push_back(row->worker);
    end_actor(s, id, why);
  }
  for (const WorkerId worker : starts) undo_start(s, worker, why, out);
  for (const JobId id : created.jobs) {
    if (s.jobs.living(id) == nullptr) continue;
    const std::vector<WorkerId> processes = s.jobs.at(id).processes;
    (void)on(s, JobStopped{id, true});
    for (const WorkerId worker : processes) undo_start(s, worker, why, out);
    (void)on(s, JobDeleted{id});
  }
  for (const GroupId id : created.groups) remove_group(s, id, why);
  for (const ActorId hosted : created.hosted) {
    out.hosted.insert(hosted);
    for (const ActorId id : s.hosted.forget_gang_of(hosted)) {
      out.hosted.insert(id);
      if (s.actors.living(id) == nullptr) continue;
      s.actors.die(id, why);
      s.turn.act(NotifyActor{s.actors.at(id)});
    }
  }
}

}  // namespace

void Created::add(const Created& other) {
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(actors, other.actors);
  append(jobs, other.jobs);
  append(groups, other.groups);
  append(hosted, other.hosted);
}

Undone on(Parts& s, const RequestsUndone& event) {
  Undone out;
  place_after(s, [&] { undo(s, event.created, event.why, out); });
  return out;
}

}  // namespace shoal::scheduler
