// Events of actors: requests, kills, restarts, actors hosted by existing processes, and names.
#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "actors/cluster/function_worker.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using actors::JobState;
using actors::WorkerState;

namespace {

Error actor_died(const ActorRow& row, const Error& cause) {
  const bool in_order = cause.reason() == "JobEnded";
  Error e = Error(Code::kUnavailable, fmt::format("actor {} {}: {}", row.class_name, in_order ? "is gone" : "died", cause.message()))
                .with_reason(cause.reason() == "Unschedulable" || cause.reason() == actors::kOutOfMemory ? cause.reason() : "ActorDied")
                .with_hint(cause.hint());
  for (const auto& frame : cause.context()) e = std::move(e).in(frame);
  return std::move(e).in(fmt::format("actor {}({})", row.class_name, to_string(row.id)));
}

// `creator` is null if its row was dropped. The text includes the reason of the creator's end, unless that is longer than kMaxWhy.
Error creator_ended(const ActorRow* creator, const Error& why) {
  constexpr std::size_t kMaxWhy = 1000;
  if (creator == nullptr) return unavailable("its creator ended: " + why.message()).with_reason("CreatorEnded");
  const bool reported = creator->state == ActorState::kDead && creator->cause;
  std::string how = reported ? creator->cause->message() : why.message();
  const std::string prefix = fmt::format("actor {} died: ", creator->class_name);
  if (reported && how.starts_with(prefix)) how = how.substr(prefix.size());
  how = how.substr(0, how.find('\n'));
  const std::string who = actors::is_function_worker(*creator) ? "a worker of remote functions"
                                                               : fmt::format("actor {}({})", creator->class_name, to_string(creator->id));
  return unavailable(fmt::format("its creator, {}, ended{}", who, how.size() > kMaxWhy ? "" : ": " + how)).with_reason("CreatorEnded");
}

}  // namespace

Result<std::optional<actors::FoundActor>> ClusterState::gang_requested(const actors::GangSpec& spec) {
  if (spec.actors.empty()) return fail(invalid_argument("a gang without actors"));
  const auto job = jobs_.find(spec.job);
  if (job == jobs_.end() || ended(job->second.row.state)) return fail(not_found("no running job " + to_string(spec.job)));
  // A repeated request: an earlier head accepted it and ended before it answered.
  if (const auto known = actors_.find(spec.actors[0].id); known != actors_.end() && known->second.gang == spec.id) {
    return std::optional<actors::FoundActor>();
  }
  if (gangs_.contains(spec.id)) return fail(invalid_argument("gang " + to_string(spec.id) + " exists already"));
  if (!spec.name.empty()) {
    if (auto found = find({spec.name, spec.name_space}); found && spec.get_if_exists) {
      return std::optional(*std::move(found));
    } else if (found) {
      return fail(invalid_argument(fmt::format("an actor named '{}' lives already in namespace '{}'", spec.name, spec.name_space))
                      .with_reason("NameTaken")
                      .with_hint("get it with get_actor, or with get_if_exists=True"));
    }
  }
  Gang gang;
  gang.spec = spec;
  for (const auto& a : spec.actors) {
    if (!a.id || actors_.contains(a.id)) return fail(invalid_argument("actor " + to_string(a.id) + " exists already"));
    gang.wants.push_back(a.resources);
  }
  SHOAL_TRY(gang.spec.creator, creator_of(spec));
  SHOAL_OK(check_where(gang));
  if (spec.refuse_infeasible && !spec.where.group) {
    const Allowed could = only(resource_index().capacity(), spec.where, gang.wants);
    if (!place(gang.wants, *could)) return fail(infeasible(explain(gang.wants, *could)));
  }
  gang.living = spec.actors.size();
  if (spec.detached) gang.spec.job = open_detached_job(spec);
  gang.order = next_order_++;
  if (!spec.name.empty()) names_[{spec.name_space, spec.name}] = spec.actors[0].id;
  for (std::size_t i = 0; i < spec.actors.size(); ++i) {
    ActorRow row;
    row.id = spec.actors[i].id;
    row.class_name = spec.actors[i].class_name;
    row.job = gang.spec.job;
    row.gang = spec.id;
    row.name = spec.name;
    row.name_space = spec.name_space;
    row.detached = spec.detached;
    row.max_restarts = spec.max_restarts;
    row.max_task_retries = spec.max_task_retries;
    row.rank = static_cast<std::int32_t>(i);
    row.world_size = static_cast<std::int32_t>(spec.actors.size());
    actors_.add(row.id) = std::move(row);
  }
  if (gang.spec.creator) made_by_[gang.spec.creator].insert(spec.id);
  gangs_.add(spec.id) = std::move(gang);
  pending_.push_back(waiting(gangs_.at(spec.id)));
  place_pending();
  explain_newcomer();
  return std::optional<actors::FoundActor>();
}

Result<WorkerId> ClusterState::creator_of(const actors::GangSpec& spec) const {
  if (!spec.creator || spec.detached) return WorkerId();
  const auto w = workers_.find(spec.creator);
  if (w == workers_.end() || w->second.row.state == WorkerState::kExited) {
    return fail(cancelled("the process that asks for it has ended").with_reason("CreatorEnded"));
  }
  return w->second.actor ? spec.creator : WorkerId();
}

void ClusterState::forget_gang(GangId id) {
  const auto made = made_by_.find(gangs_.at(id).spec.creator);
  if (made != made_by_.end() && made->second.erase(id) > 0 && made->second.empty()) made_by_.erase(made);
  gangs_.erase(id);
}

void ClusterState::end_made_by(const Worker& worker, const Error& why) {
  const auto made = made_by_.extract(worker.row.id);
  if (!made) return;
  const auto creator = actors_.find(worker.actor);
  const Error over = creator_ended(creator == actors_.end() ? nullptr : &creator->second, why);
  for (const GangId id : made.mapped()) {
    const std::vector<actors::ActorSpec> members = gangs_.at(id).spec.actors;
    for (const auto& a : members) {
      const auto row = actors_.find(a.id);  // no row for a member that died long ago
      if (row != actors_.end() && row->second.state != ActorState::kDead) end_actor(actors_.edit(a.id), over);
    }
  }
}

// Function workers that `from` made stay and end with it, but what they made is handed on. A gang that never finished starting also stays:
// `from` has not sent its constructor call yet.
void ClusterState::hand_on(WorkerId from, WorkerId to) {
  const auto made = made_by_.extract(from);
  if (!made) return;
  for (const GangId id : made.mapped()) {
    const auto& members = gangs_.at(id).spec.actors;
    const bool functions = actors::is_function_class(members[0].class_name);
    const bool lives = std::all_of(members.begin(), members.end(), [&](const auto& a) {
      const auto row = actors_.find(a.id);
      return row == actors_.end() || (row->second.state != ActorState::kPending && row->second.state != ActorState::kStarting) ||
             row->second.num_restarts > 0;
    });
    if (functions || !lives) {
      made_by_[from].insert(id);
      if (functions) hand_on(actors_.at(members[0].id).worker, to);
      continue;
    }
    gangs_.edit(id).spec.creator = to;
    if (to) made_by_[to].insert(id);
  }
}

Result<void> ClusterState::worker_retired(ActorId id) {
  const auto it = actors_.find(id);
  if (it != actors_.end() && !actors::is_function_worker(it->second)) {
    return fail(invalid_argument("actor " + to_string(id) + " is no worker of remote functions: it can be killed, not retired"));
  }
  if (it != actors_.end() && it->second.state != ActorState::kDead && gangs_.contains(it->second.gang)) {
    hand_on(it->second.worker, gangs_.at(it->second.gang).spec.creator);
  }
  return actor_killed(id);
}

JobId ClusterState::open_detached_job(const actors::GangSpec& spec) {
  const auto id = random_.id<JobId>();
  Job& job = jobs_.add(id);
  job.row.id = id;
  job.row.name = fmt::format("detached {}", spec.name.empty() ? spec.actors[0].class_name : spec.name);
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms_;
  job.detached = true;
  return id;
}

bool ClusterState::may_restart(const ActorRow& row) const {
  return row.max_restarts < 0 || row.num_restarts < static_cast<std::uint32_t>(row.max_restarts);
}

bool ClusterState::restart_actor(ActorRow& row, const Worker& worker, std::int32_t shell_code, const Error& cause) {
  const auto job = jobs_.find(row.job);
  if (!gangs_.contains(row.gang) || job == jobs_.end() || ended(job->second.row.state)) return false;
  Gang& gang = gangs_.scratch(row.gang);
  if (!may_restart(row)) return false;
  const bool no_program = worker.row.pid == 0 && shell_code == 127;
  if (worker.leaving || no_program) return false;
  gang.early_deaths = now_ - gang.started < options_.early_death ? gang.early_deaths + 1 : 0;
  Pending again = waiting(gang);
  if (gang.early_deaths > 1) {
    again.not_before =
        now_ + std::min<runtime::Duration>(options_.first_pause * (1 << std::min(gang.early_deaths - 2, 10)), options_.longest_pause);
  }
  ++row.num_restarts;
  row.state = ActorState::kRestarting;
  row.endpoint.clear();
  row.previous = row.worker;
  row.worker = {};
  row.node = {};
  row.pid = 0;
  row.pending_reason = "its process ended and is started again: " + cause.message().substr(0, cause.message().find('\n'));
  row.cause = cause;
  pending_.push_back(again);
  act(NotifyActor{row});
  return true;
}

void ClusterState::kill_actor_row(ActorRow& row, const Error& cause) {
  if (const auto named = names_.find({row.name_space, row.name}); named != names_.end() && named->second == row.id) {
    names_.erase(named);
  }
  if (gangs_.contains(row.gang) && --gangs_.scratch(row.gang).living == 0) {
    std::erase_if(pending_, [&](const Pending& p) { return p.gang == row.gang; });
    forget_gang(row.gang);
  }
  row.state = ActorState::kDead;
  row.pending_reason.clear();
  row.cause = actor_died(row, cause);
  ended_actors_.push_back(row.id);
  act(NotifyActor{row});
  fail_hosted(row.id, *row.cause);
}

Result<void> ClusterState::actor_killed(ActorId id, bool restart) {
  const auto it = actors_.find(id);
  if (it == actors_.end()) return fail(not_found("no actor " + to_string(id)));
  const ActorRow& row = it->second;
  if (row.state == ActorState::kDead) return {};
  if (restart && row.max_restarts != 0) {
    if (row.worker) act(StopWorkerOn{row.node, {row.worker, SIGKILL, 0}});
    return {};
  }
  end_actor(actors_.edit(id), unavailable("it was killed by shoal.kill").with_reason("Killed"));
  place_pending();
  return {};
}

void ClusterState::end_actor(ActorRow& row, const Error& cause) {
  const ActorState before = row.state;
  const ActorId id = row.id;
  const JobId job = row.job;
  const bool detached = row.detached;
  const auto gang = gangs_.find(row.gang);
  const bool waited = before == ActorState::kPending || before == ActorState::kRestarting;
  const std::vector<actors::ActorSpec> members =
      waited && gang != gangs_.end() ? gang->second.spec.actors : std::vector<actors::ActorSpec>();
  kill_actor_row(row, cause);
  const auto w = workers_.find(row.worker);
  if (waited) {
    // A gang is placed as a whole: one that lost a member is never placed.
    std::erase_if(pending_, [&](const Pending& p) { return p.gang && p.gang == row.gang; });
    for (const auto& a : members) {
      const auto other = actors_.find(a.id);
      if (other != actors_.end() && other->second.state == ActorState::kPending) kill_actor_row(actors_.edit(a.id), cause);
    }
  } else if (w != workers_.end() && w->second.actor == id) {
    act(StopWorkerOn{row.node, {row.worker, SIGKILL, 0}});
  } else if (w != workers_.end()) {
    act(KillHostedOn{row.node, {row.worker, row.pid, id, row.cause}});
  }
  if (detached) end_job(jobs_.edit(job), JobState::kStopped);
}

Result<void> ClusterState::actor_hosted(const actors::HostActor& m) {
  const auto job = jobs_.find(m.job);
  if (job == jobs_.end() || ended(job->second.row.state)) return fail(not_found("no running job " + to_string(m.job)));
  const auto w = workers_.find(m.worker);
  if (w == workers_.end() || w->second.row.state == WorkerState::kExited) {
    return fail(not_found("no running process " + to_string(m.worker)));
  }
  if (const auto known = actors_.find(m.actor); known != actors_.end()) return hosted_again(m, known->second);
  if (!m.actor) return fail(invalid_argument("an actor without an id"));
  if (m.world_size < 1 || m.rank < 0 || m.rank >= m.world_size) {
    return fail(invalid_argument(fmt::format("rank {} of a gang of {}", m.rank, m.world_size)));
  }
  auto& gang = hosted_[{m.job, m.gang_key}];
  if (!gang.id) {
    gang.id = random_.id<GangId>();
    gang.world_size = m.world_size;
  }
  if (gang.world_size != m.world_size || gang.complete || gang.members.contains(m.rank)) {
    return fail(invalid_argument(fmt::format("rank {} of {} does not belong to gang {} (world size {}{})", m.rank, m.world_size, m.gang_key,
                                             gang.world_size, gang.complete ? ", complete" : "")));
  }
  gang.members[m.rank] = m.actor;
  ActorRow row;
  row.id = m.actor;
  row.class_name = m.class_name;
  row.job = m.job;
  row.node = w->second.row.node;
  row.worker = m.worker;
  row.pid = w->second.row.pid;
  row.gang = gang.id;
  row.rank = m.rank;
  row.world_size = m.world_size;
  row.endpoint = m.endpoint;
  row.attributes = m.attributes;
  row.pending_reason = "waits for the rest of its gang";
  actors_.add(m.actor) = std::move(row);
  hosted_in_[m.worker].push_back(m.actor);
  if (static_cast<std::int32_t>(gang.members.size()) < gang.world_size) return {};
  gang.complete = true;
  actors::HostedActor answer{gang.id, 1, {}};
  for (const auto& [rank, id] : gang.members) answer.members.push_back(id);
  for (const auto& [rank, id] : gang.members) {
    ActorRow& a = actors_.edit(id);
    a.state = ActorState::kAlive;
    a.generation = answer.generation;
    a.pending_reason.clear();
    act(NotifyActor{a});
    act(AnswerHosted{id, answer});
  }
  return {};
}

// A repeated request: an earlier head accepted it and ended before it answered.
Result<void> ClusterState::hosted_again(const actors::HostActor& m, const ActorRow& row) {
  const bool same = row.worker == m.worker && row.class_name == m.class_name && row.rank == m.rank && row.world_size == m.world_size;
  if (!same || row.state == ActorState::kDead) return fail(invalid_argument("actor " + to_string(m.actor) + " exists already"));
  if (row.state != ActorState::kAlive) return {};  // answered once its gang is complete
  actors::HostedActor answer{row.gang, row.generation, std::vector<ActorId>(static_cast<std::size_t>(row.world_size))};
  for (const auto& [id, a] : actors_) {
    if (a.gang == row.gang) answer.members.at(static_cast<std::size_t>(a.rank)) = id;
  }
  act(AnswerHosted{m.actor, std::move(answer)});
  return {};
}

// Fails the requests of all members when one dies before the gang is complete.
void ClusterState::fail_hosted(ActorId actor, const Error& cause) {
  for (auto& [key, gang] : hosted_) {
    if (gang.complete) continue;
    const bool member = std::any_of(gang.members.begin(), gang.members.end(), [&](const auto& m) { return m.second == actor; });
    if (!member) continue;
    gang.complete = true;
    for (const auto& [rank, id] : gang.members) act(AnswerHosted{id, fail(cause)});
  }
}

void ClusterState::attributes_set(const actors::SetAttributes& m) {
  if (!actors_.contains(m.actor)) return;
  ActorRow& row = actors_.edit(m.actor);
  for (const auto& [name, value] : m.attributes) row.attributes[name] = value;
}

}  // namespace shoal::scheduler
