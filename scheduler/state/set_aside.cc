#include "scheduler/state/set_aside.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <set>

#include <fmt/format.h>

#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using actors::GroupState;
using actors::JobState;
using actors::WorkerState;

namespace {

Error lost(const SetAside& row) {
  return data_loss(fmt::format("the head could not use its stored row of {} {:016x}: {}", to_string(row.table), row.id, row.why.message()))
      .with_reason("RowSetAside");
}

bool waits(const ActorRow& row) { return row.state == ActorState::kPending || row.state == ActorState::kRestarting; }
bool runs(const ActorRow& row) { return row.state == ActorState::kStarting || row.state == ActorState::kAlive; }

bool is_waiting(const Parts& s, const rows::Gang& gang) {
  return std::ranges::any_of(gang.spec.actors, [&](const auto& a) { return s.actors.contains(a.id) && waits(s.actors.at(a.id)); });
}

class StandIns {
 public:
  StandIns(Parts& s, std::vector<SetAside>& rows) : s_(s), rows_(rows) {
    for (const auto& row : rows) known_.insert({row.table, row.id});
  }

  void put() {
    put_actors();
    put_groups();
    put_workers();
    check_bundles();
    put_jobs();
    put_nodes();
  }

 private:
  // Notes a row that the store lacks.
  void missing(TableName table, std::uint64_t id, const std::string& needed_by) {
    if (known_.insert({table, id}).second) rows_.push_back({table, id, "", data_loss("it is missing, and " + needed_by + " needs it"), {}});
  }
  template <class Use>
  void each(TableName table, const Use& use) const {
    for (const auto& row : rows_) {
      if (row.table == table) use(row);
    }
  }

  // An actor without a row is dead. So is one that waits, and whose request is lost with its gang's row.
  void put_actors() {
    std::map<ActorId, std::pair<GangId, std::size_t>> members;
    for (const auto& [id, gang] : s_.gangs) {
      for (std::size_t i = 0; i < gang.spec.actors.size(); ++i) members[gang.spec.actors[i].id] = {id, i};
      if (!is_waiting(s_, gang)) continue;
      for (const auto& a : gang.spec.actors) {  // a gang that waits has all its members
        if (!s_.actors.contains(a.id)) missing(TableName::kActors, a.id.value, "gang " + to_string(id));
      }
    }
    each(TableName::kActors, [&](const SetAside& aside) {
      ActorRow& row = s_.actors.restore(ActorId{aside.id});
      row.id = ActorId{aside.id};
      row.class_name = row.name = aside.name;
      if (const auto member = members.find(row.id); member != members.end()) {
        const auto& spec = s_.gangs.at(member->second.first).spec;
        row.class_name = spec.actors[member->second.second].class_name;
        row.name = spec.name;
        row.name_space = spec.name_space;
        row.job = spec.job;
        row.gang = spec.id;
      }
      row.state = ActorState::kDead;
      row.cause = lost(aside);
    });
    // An actor that waits without a process needs its gang's row. A hosted actor has a process, and no row of a gang.
    for (const auto& [id, actor] : s_.actors) {
      if (waits(actor) && !actor.worker && !s_.gangs.contains(actor.gang)) {
        missing(TableName::kGangs, actor.gang.value, "actor " + to_string(id));
      }
    }
    each(TableName::kGangs, [&](const SetAside& aside) {
      for (const auto& [id, actor] : s_.actors) {
        if (actor.gang != GangId{aside.id} || !waits(actor)) continue;
        ActorRow& row = s_.actors.restore(id);
        row.state = ActorState::kDead;
        row.pending_reason.clear();
        row.cause = lost(aside);
        s_.actors.change_again(id);
      }
    });
  }

  void put_groups() {
    for (const auto& [id, gang] : s_.gangs) {
      const GroupId group = gang.spec.where.group;
      const bool lives = std::ranges::any_of(gang.spec.actors, [&](const auto& a) { return s_.actors.living(a.id) != nullptr; });
      if (group && lives && !s_.groups.contains(group)) missing(TableName::kGroups, group.value, "gang " + to_string(id));
    }
    each(TableName::kGroups, [&](const SetAside& aside) {
      auto& row = s_.groups.restore(GroupId{aside.id}).row;
      row.id = GroupId{aside.id};
      row.name = aside.name;
      row.state = GroupState::kRemoved;
      row.cause = lost(aside);
    });
  }

  void put_worker(WorkerId id, const actors::WorkerRow& row, ActorId actor) {
    rows::Worker& worker = s_.workers.restore(id);
    worker.row = row;
    worker.actor = actor;
    worker.launched = true;
  }
  void put_workers() {
    for (const auto& [id, actor] : s_.actors) {
      if (!runs(actor) || s_.workers.contains(actor.worker)) continue;
      missing(TableName::kWorkers, actor.worker.value, "actor " + to_string(id));
      const ActorId inside = s_.gangs.contains(actor.gang) ? id : ActorId();
      put_worker(actor.worker, {actor.worker, actor.node, actor.job, actor.pid, WorkerState::kRunning, "actor " + actor.class_name, -1, {}},
                 inside);
    }
    for (const auto& [id, job] : s_.jobs) {
      // At least one process of a running job lives. So if no known process lives, rows were lost. Otherwise the missing rows are those of
      // processes that ended long ago.
      const bool none_lives = job.row.state == JobState::kRunning && std::ranges::none_of(job.processes, [&](WorkerId p) {
                                return s_.workers.living(p) != nullptr || known_.contains({TableName::kWorkers, p.value});
                              });
      for (std::size_t i = 0; i < job.processes.size(); ++i) {
        const WorkerId process = job.processes[i];
        if (ended(job.row.state) || s_.workers.contains(process)) continue;
        if (none_lives) missing(TableName::kWorkers, process.value, "job " + to_string(id));
        if (!known_.contains({TableName::kWorkers, process.value})) continue;
        put_worker(process, {process, job.placed[i], id, 0, WorkerState::kRunning, fmt::format("rank {}", i), static_cast<int>(i), {}}, {});
      }
      // The driver attaches once more when its node joins, or its job fails soon.
      if (job.driver && known_.contains({TableName::kWorkers, job.driver.value}) && !s_.workers.contains(job.driver)) {
        s_.jobs.restore(id).attached = false;
      }
    }
  }

  // A worker that refers to a bundle which its group does not have holds nothing, and ends.
  void check_bundles() {
    for (const auto& [id, worker] : s_.workers) {
      const auto* const group = s_.groups.living(worker.group);
      if (group == nullptr || (worker.bundle >= 0 && worker.bundle < static_cast<std::int32_t>(group->row.bundles.size()))) continue;
      if (worker.row.state != WorkerState::kExited) {
        known_.insert({TableName::kWorkers, id.value});
        rows_.push_back({TableName::kWorkers, id.value, worker.row.role, data_loss("its bundle does not exist"), {}});
      }
      rows::Worker& row = s_.workers.restore(id);
      row.group = {};
      row.held = {};
    }
  }

  void put_jobs() {
    const auto needs = [&](JobId job, const std::string& what) {
      if (job && !s_.jobs.contains(job)) missing(TableName::kJobs, job.value, what);
    };
    for (const auto& [id, gang] : s_.gangs) needs(gang.spec.job, "gang " + to_string(id));
    for (const auto& [id, actor] : s_.actors) {
      if (actor.state != ActorState::kDead) needs(actor.job, "actor " + to_string(id));
    }
    for (const auto& [id, group] : s_.groups) {
      if (group.row.state != GroupState::kRemoved) needs(group.row.job, "placement group " + to_string(id));
    }
    each(TableName::kJobs, [&](const SetAside& aside) {
      rows::Job& job = s_.jobs.restore(JobId{aside.id});
      job.row.id = JobId{aside.id};
      job.row.name = aside.name;
      job.row.state = JobState::kRunning;
      job.attached = true;
      for (const auto& [id, worker] : s_.workers) {
        if (worker.row.job == job.row.id) job.nodes.insert(worker.row.node);
      }
    });
  }

  void put_nodes() {
    const auto needs = [&](NodeId node, const std::string& what) {
      if (!s_.nodes.contains(node)) missing(TableName::kNodes, node.value, what);
    };
    for (const auto& [id, worker] : s_.workers) {
      if (worker.row.state != WorkerState::kExited) needs(worker.row.node, "worker " + to_string(id));
    }
    for (const auto& [id, group] : s_.groups) {
      for (const NodeId node : group.row.nodes) {
        if (node && group.row.state != GroupState::kRemoved) needs(node, "placement group " + to_string(id));
      }
    }
    each(TableName::kNodes, [&](const SetAside& aside) {
      auto& row = s_.nodes.restore(NodeId{aside.id}).row;
      row.id = NodeId{aside.id};
      row.host = aside.name;
    });
  }

  Parts& s_;
  std::vector<SetAside>& rows_;
  std::set<std::pair<TableName, std::uint64_t>> known_;
};

// Ends the living actors of each gang for which `ends` returns a cause.
template <class Ends>
void end_gangs(Parts& s, const Ends& ends) {
  std::vector<std::pair<ActorId, Error>> ending;
  for (const auto& [id, gang] : s.gangs) {
    const std::optional<Error> cause = ends(gang);
    if (!cause) continue;
    for (const auto& actor : gang.spec.actors) ending.emplace_back(actor.id, *cause);
  }
  for (const auto& [id, cause] : ending) {
    if (s.actors.living(id) != nullptr) end_actor(s, id, cause);
  }
}

void end_stand_in(Parts& s, const SetAside& row) {
  const Error cause = lost(row);
  switch (row.table) {
    case TableName::kNodes:
      return on(s, NodeLost{NodeId{row.id}, cause});
    case TableName::kWorkers:
      if (s.workers.living(WorkerId{row.id}) != nullptr) worker_exited(s, WorkerId{row.id}, 128 + SIGKILL, cause);
      return;
    case TableName::kJobs:
      if (s.jobs.living(JobId{row.id}) == nullptr) return;
      s.jobs.set_outcome(JobId{row.id}, 1, cause);
      return end_job(s, JobId{row.id}, JobState::kFailed);
    case TableName::kGroups:
      return end_gangs(
          s, [&](const rows::Gang& gang) { return gang.spec.where.group == GroupId{row.id} ? std::optional(cause) : std::nullopt; });
    case TableName::kActors:
      return end_gangs(s, [&](const rows::Gang& gang) -> std::optional<Error> {
        const bool its = std::ranges::any_of(gang.spec.actors, [&](const auto& a) { return a.id == ActorId{row.id}; });
        return its && is_waiting(s, gang) ? std::optional(cause) : std::nullopt;
      });
    case TableName::kGangs:
      return;
  }
}

}  // namespace

std::string to_string(const SetAside& row) {
  return fmt::format("{} {:016x}{}: {}", to_string(row.table), row.id, row.name.empty() ? "" : " (" + row.name + ")", row.why.message());
}

void put_stand_ins(Parts& s, std::vector<SetAside>& rows) { StandIns(s, rows).put(); }

void end_stand_ins(Parts& s, const std::vector<SetAside>& rows) {
  if (rows.empty()) return;
  for (const auto& row : rows) end_stand_in(s, row);
  const Error alone = data_loss("the row of the process that made it could not be used").with_reason("CreatorEnded");
  end_gangs(s, [&](const rows::Gang& gang) {
    const WorkerId creator = gang.spec.creator;
    return creator && s.workers.living(creator) == nullptr ? std::optional(alone) : std::nullopt;
  });
  // Gangs of which no member lives end, and so do jobs whose detached actor does not live.
  std::vector<GangId> over;
  for (const auto& [id, gang] : s.gangs) {
    if (std::ranges::none_of(gang.spec.actors, [&](const auto& a) { return s.actors.living(a.id) != nullptr; })) over.push_back(id);
  }
  for (const GangId gang : over) s.gangs.forget(gang);
  std::set<JobId> led;
  for (const auto& [id, actor] : s.actors) {
    if (actor.detached && actor.state != ActorState::kDead) led.insert(actor.job);
  }
  std::vector<JobId> without_actor;
  for (const auto& [id, job] : s.jobs) {
    if (job.detached && !ended(job.row.state) && !led.contains(id)) without_actor.push_back(id);
  }
  for (const JobId job : without_actor) {
    s.jobs.set_outcome(job, 1, data_loss("the row of its actor, or of the actor's gang, could not be used").with_reason("RowSetAside"));
    end_job(s, job, JobState::kFailed);
  }
}

}  // namespace shoal::scheduler
