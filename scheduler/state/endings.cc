#include "scheduler/state/endings.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using actors::JobState;
using actors::Resources;
using rows::Job;
using rows::Worker;

namespace {

// `creator` is null if its row was dropped. The text includes the reason of the creator's end, unless that is longer than kMaxWhy.
Error creator_ended(const ActorRow* creator, const Error& why) {
  constexpr std::size_t kMaxWhy = 1000;
  if (creator == nullptr) return unavailable("its creator ended: " + why.message()).with_reason("CreatorEnded");
  const bool reported = creator->state == ActorState::kDead && creator->cause;
  std::string how = reported ? creator->cause->message() : why.message();
  if (reported && !creator->cause->cause_message().empty()) how = creator->cause->cause_message();
  how = how.substr(0, how.find('\n'));
  const std::string who = actors::is_function_worker(*creator) ? "a worker of remote functions"
                                                               : fmt::format("actor {}({})", creator->class_name, to_string(creator->id));
  return unavailable(fmt::format("its creator, {}, ended{}", who, how.size() > kMaxWhy ? "" : ": " + how)).with_reason("CreatorEnded");
}

// Ends the actor itself. If an existing process hosted it, and its gang still gathers members, the gang fails (hosted_gangs.h).
void actor_dies(Parts& s, ActorId id, const Error& cause) {
  const GangId gang = s.actors.at(id).gang;
  if (s.gangs.contains(gang) && s.gangs.lose_member(gang)) {
    drop_gang(s.queue, gang);
    s.gangs.forget(gang);
  }
  s.actors.die(id, cause);
  const ActorRow& row = s.actors.at(id);
  s.turn.act(NotifyActor{row});
  for (const ActorId member : s.hosted.fail_gang_of(id, *row.cause)) s.turn.act(AnswerHosted{member, fail(*row.cause)});
}

// Queues a restart after an unrequested end of the process. Returns false if the actor may not restart.
bool restart_actor(Parts& s, ActorId id, const Worker& worker, std::int32_t shell_code, const Error& cause) {
  const ActorRow& row = s.actors.at(id);
  if (!s.gangs.contains(row.gang) || s.jobs.living(row.job) == nullptr || !may_restart(row)) return false;
  const bool no_program = worker.row.pid == 0 && shell_code == 127;
  if (worker.leaving || no_program) return false;
  const auto& options = s.turn.options;
  const int early_deaths = s.gangs.count_end(row.gang, s.turn.now, options.early_death);
  Pending again = waiting(s, s.gangs.at(row.gang));
  if (early_deaths > 1) {
    again.not_before =
        s.turn.now + std::min<runtime::Duration>(options.first_pause * (1 << std::min(early_deaths - 2, 10)), options.longest_pause);
  }
  s.actors.restart(id, cause);
  s.queue.add(again);
  s.turn.act(NotifyActor{row});
  return true;
}

// Returns true if an actor of the process is to be started again.
bool end_actors_in(Parts& s, const Worker& worker, std::int32_t shell_code, const Error& why) {
  const WorkerId id = worker.row.id;
  std::vector<ActorId> inside = s.hosted.take_in(id);
  if (worker.actor) inside.push_back(worker.actor);
  bool restarts = false;
  for (const ActorId actor : inside) {
    const ActorRow* const row = s.actors.living(actor);
    if (row == nullptr || row->worker != id) continue;
    if (restart_actor(s, actor, worker, shell_code, why)) {
      restarts = true;
    } else {
      actor_dies(s, actor, why);
    }
  }
  return restarts;
}

void end_created_by(Parts& s, const Worker& worker, const Error& why) {
  const auto created = s.gangs.take_created_by(worker.row.id);
  if (created.empty()) return;
  const auto creator = s.actors.find(worker.actor);
  const Error over = creator_ended(creator == s.actors.end() ? nullptr : &creator->second, why);
  for (const GangId id : created) {
    const std::vector<actors::ActorSpec> members = s.gangs.at(id).spec.actors;
    for (const auto& a : members) {
      if (s.actors.living(a.id) != nullptr) end_actor(s, a.id, over);  // a member that died long ago has no row
    }
  }
}

// A rank or a submitted program exited. The job ends with its last process.
void job_process_exited(Parts& s, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  const JobId id = worker.row.job;
  if (s.jobs.process_exited(id, worker, shell_code, cause)) stop_processes(s, id, SIGTERM);
  const Job& job = s.jobs.at(id);
  if (job.running > 0) return;
  end_job(s, id, job.stopping ? JobState::kStopped : job.row.exit_code == 0 ? JobState::kSucceeded : JobState::kFailed);
}

// The leading process of a job, its driver or its detached actor, exited and is not restarted. A driver reports an orderly end before it
// exits (DriverEnded), so its job has failed here. A detached actor may end its job by exiting with 0.
void leading_process_exited(Parts& s, const Job& job, std::int32_t shell_code, const Error& why) {
  const bool by_itself = job.detached && shell_code == 0;
  s.jobs.set_outcome(job.row.id, shell_code, by_itself ? std::nullopt : std::optional(why));
  end_job(s, job.row.id, by_itself ? JobState::kSucceeded : JobState::kFailed);
}

// Returns the cause of a process's end as its row shows it: a requested SIGKILL is no crash.
std::optional<Error> shown_cause(const Parts& s, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  const bool job_is_over = s.jobs.contains(worker.row.job) && s.jobs.living(worker.row.job) == nullptr && worker.row.role != "driver";
  if (shell_code != 128 + SIGKILL) return cause;
  if (job_is_over) return cancelled("ended with its job").with_reason("JobEnded");
  const auto actor = s.actors.find(worker.actor);
  // An actor that is dead already was ended on request, and its process by this SIGKILL. A worker killed for lack of memory has another
  // reason than WorkerDied, and keeps it.
  const bool requested = actor != s.actors.end() && actor->second.state == ActorState::kDead && actor->second.cause;
  return requested && cause && cause->reason() == "WorkerDied" ? actor->second.cause : cause;
}

}  // namespace

void worker_exited(Parts& s, WorkerId id, std::int32_t shell_code, const std::optional<Error>& cause) {
  const Worker& worker = s.workers.at(id);
  if (worker.launched) s.nodes.remove_process(worker.row.node);
  const Resources held = s.workers.exit(id, shown_cause(s, worker, shell_code, cause));
  source(s, worker) += held;
  if (!worker.group) s.shares.gives(worker.row.job, held);

  const Error why = cause.value_or(unavailable("its process ended").with_reason("WorkerExited"));
  const bool restarts = end_actors_in(s, worker, shell_code, why);
  end_created_by(s, worker, why);  // first, before any actor is placed again
  if (const Job* const job = s.jobs.living(worker.row.job)) {
    if (std::ranges::count(job->processes, id) > 0) {
      job_process_exited(s, worker, shell_code, cause);
    } else if (job->driver == id && !restarts) {
      leading_process_exited(s, *job, shell_code, why);
    }
  }
  place_pending(s);
}

void end_actor(Parts& s, ActorId id, const Error& cause) {
  const ActorRow& row = s.actors.at(id);
  const bool waited = row.state == ActorState::kPending || row.state == ActorState::kRestarting;
  const auto gang = s.gangs.find(row.gang);
  const std::vector<actors::ActorSpec> members =
      waited && gang != s.gangs.end() ? gang->second.spec.actors : std::vector<actors::ActorSpec>();
  actor_dies(s, id, cause);
  const auto w = s.workers.find(row.worker);
  if (waited) {
    // A gang is placed as a whole, so one that lost a member can never be placed.
    drop_gang(s.queue, row.gang);
    for (const auto& a : members) {
      const ActorRow* const other = s.actors.living(a.id);
      if (other != nullptr && other->state == ActorState::kPending) actor_dies(s, a.id, cause);
    }
  } else if (w != s.workers.end() && w->second.actor == id) {
    s.turn.act(StopWorkerOn{row.node, {row.worker, SIGKILL, 0}});
  } else if (w != s.workers.end()) {
    s.turn.act(KillHostedOn{row.node, {row.worker, row.pid, id, row.cause}});
  }
  if (row.detached) end_job(s, row.job, JobState::kStopped);
}

void remove_group(Parts& s, GroupId id, const Error& cause) {
  if (s.groups.living(id) == nullptr) return;
  const auto& row = s.groups.at(id).row;
  for (auto& bundle : s.groups.remove(id, cause)) {
    s.nodes.free(bundle.node) += bundle.free;
    s.shares.gives(row.job, bundle.size);
  }
  std::vector<ActorId> inside;
  for (const auto& [gang, g] : s.gangs) {
    if (g.spec.where.group != id) continue;
    for (const auto& a : g.spec.actors) inside.push_back(a.id);
  }
  for (const ActorId actor : inside) {
    if (s.actors.living(actor) != nullptr) end_actor(s, actor, cause);  // a member that died long ago has no row
  }
  s.turn.act(NotifyGroup{row});
}

void end_job(Parts& s, JobId id, JobState state) {
  const Job* const job = s.jobs.living(id);
  if (job == nullptr) return;
  s.jobs.finish(id, state, s.turn.unix_ms, s.turn.next_order++);
  drop_job(s, id);
  std::vector<GangId> gangs;
  for (const auto& [gang, g] : s.gangs) {
    if (g.spec.job == id) gangs.push_back(gang);
  }
  for (const GangId gang : gangs) s.gangs.forget(gang);
  const Error over = cancelled("its job ended").with_reason("JobEnded");
  for (const auto& [actor, row] : s.actors) {
    if (row.job == id && row.state != ActorState::kDead) actor_dies(s, actor, over);
  }
  std::vector<GroupId> groups;
  for (const auto& [group, g] : s.groups) {
    if (g.row.job == id) groups.push_back(group);
  }
  for (const GroupId group : groups) remove_group(s, group, over);
  s.hosted.end_job(id);
  for (const NodeId n : job->nodes) {
    if (s.nodes.lives(n)) s.turn.act(EndJobOn{n, id});
  }
  s.turn.act(NotifyJob{job->row});
  s.jobs.list_ended(id);
  place_pending(s);
}

void stop_processes(Parts& s, JobId job, int signal) {
  for (const WorkerId p : s.jobs.at(job).processes) {
    const Worker* const w = s.workers.living(p);  // null for a process that ended long ago
    if (w != nullptr) s.turn.act(StopWorkerOn{w->row.node, {p, signal, s.turn.options.stop_grace_ms}});
  }
}

}  // namespace shoal::scheduler
