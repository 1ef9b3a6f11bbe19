// Events of jobs: drivers, and submitted jobs with their ports.
#include <algorithm>
#include <csignal>

#include "scheduler/state/bounds.h"
#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/explain.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::JobState;
using actors::Resources;
using rows::Job;

JobId on(Parts& s, const DriverJoined& event) {
  if (s.jobs.living(event.driver.job) != nullptr) return event.driver.job;
  const auto id = s.turn.random.id<JobId>();
  s.jobs.add_driver(id, event.driver, s.turn.unix_ms);
  return id;
}

void on(Parts& s, const DriverEnded& event) {
  const Job* const job = s.jobs.living(event.job);
  // A submitted job ends with its processes, not with one driver's orderly end.
  if (job != nullptr && job->processes.empty()) end_job(s, event.job, JobState::kSucceeded);
}

void on(Parts& s, const DriverGone& event) {
  const Job* const job = s.jobs.living(event.job);
  if (job == nullptr || job->attached) return;
  s.jobs.set_outcome(event.job, 128 + SIGKILL, unavailable("its driver ended before it had joined a node").with_reason("WorkerDied"));
  end_job(s, event.job, JobState::kFailed);
}

Result<JobId> on(Parts& s, const JobSubmitted& event) {
  const auto& spec = event.spec;
  SHOAL_OK(check_bounds(spec));
  const std::vector<Resources> wanted(std::max<std::size_t>(1, spec.num_workers), spec.resources);
  const NodeResources& capacity = s.nodes.index().capacity();
  if (!spec.wait && !place(wanted, capacity)) return fail(infeasible(explain(wanted, capacity)));
  if (const auto& wished = spec.submission.id; !wished.empty() && s.jobs.has_submission(wished)) {
    return fail(invalid_argument("a job named " + wished + " was submitted already").with_reason("NameTaken"));
  }
  const auto id = s.turn.random.id<JobId>();
  s.jobs.add_submitted(id, spec, wanted, s.turn.next_order++);
  s.queue.add(waiting(s, s.jobs.at(id)));
  place_pending(s);
  explain_newcomer(s);
  return id;
}

void on(Parts& s, const PortFound& event) {
  const JobId id = event.job;
  const Job* const job = s.jobs.living(id);
  if (job == nullptr) return;
  if (!event.port) {
    s.jobs.set_outcome(id, 125, event.port.error());
    give_back_places(s, id);
    return end_job(s, id, JobState::kFailed);
  }
  s.jobs.set_meeting(id, s.nodes.at(job->placed[0]).row.host, *event.port);
  start_job(s, id);
}

void on(Parts& s, const PortNotRequested& event) {
  const auto it = s.jobs.find(event.job);
  if (it == s.jobs.end() || it->second.row.state != JobState::kPending) return;
  give_back_places(s, event.job);
  Pending again = waiting(s, it->second);
  again.not_before = s.turn.now + s.turn.options.first_pause;  // the connection to the node may be about to break
  s.queue.add(again);
  place_pending(s);
}

Result<void> on(Parts& s, const JobStopped& event) {
  const JobId id = event.job;
  if (!s.jobs.contains(id)) return fail(not_found("no job " + to_string(id)));
  const Job* const job = s.jobs.living(id);
  if (job == nullptr) return {};
  const int signal = event.force ? SIGKILL : SIGTERM;
  s.jobs.stop(id);
  if (job->running > 0) {
    stop_processes(s, id, signal);
    return {};
  }
  give_back_places(s, id);  // frees the places of a job that has not started
  if (const auto* const driver = s.workers.living(job->driver)) {
    s.turn.act(StopWorkerOn{driver->row.node, {job->driver, signal, s.turn.options.stop_grace_ms}});
  }
  end_job(s, id, JobState::kStopped);
  return {};
}

Result<void> on(Parts& s, const JobDeleted& event) {
  const auto it = s.jobs.find(event.job);
  if (it == s.jobs.end()) return fail(not_found("no job " + to_string(event.job)));
  if (!ended(it->second.row.state)) {
    const std::string state = actors::to_string(it->second.row.state);
    return fail(invalid_argument("job " + to_string(event.job) + " is " + state).with_hint("stop it first"));
  }
  s.jobs.remove(event.job);
  s.turn.act(ForgetJob{event.job});
  return {};
}

}  // namespace shoal::scheduler
