// Events of workers: reports of their nodes, starts that failed, and CPUs that they lend.
#include <csignal>

#include <fmt/format.h>

#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::Resources;
using actors::WorkerState;
using rows::Worker;

namespace {

// Adds a process that connected to its node by itself.
void attach(Parts& s, NodeId node, const actors::WorkerUpdate& process) {
  s.workers.attach(node, process);
  if (!s.jobs.contains(process.job)) return;
  s.jobs.attach(process.job, node, process);
  // The job ended before this process was reported, so the head did not send the job's end to this node.
  if (s.jobs.living(process.job) == nullptr) s.turn.act(EndJobOn{node, process.job});
}

// Warns the watchers of a job that a signal has stopped one of its processes. There is no warning for a driver, which its own shell stops.
void warn_of_stop(Parts& s, const Worker& w) {
  if (w.row.role == "driver") return;
  const auto actor = s.actors.find(w.actor);
  const std::string who =
      actor == s.actors.end() ? "worker " + w.row.role : fmt::format("actor {}({})", actor->second.class_name, to_string(w.actor));
  const auto node = s.nodes.find(w.row.node);
  const std::string host = node == s.nodes.end() ? "its host" : node->second.row.host;
  s.turn.act(
      Warn{w.row.job, fmt::format("{} (pid {} on {}) does not run: a signal (SIGSTOP) has stopped its process, and calls to it wait. `kill "
                                  "-CONT {}` on {} continues it",
                                  who, w.row.pid, host, w.row.pid, host)});
}

// Repeats a request to end a worker, which may have been lost while its node was away.
void end_unwanted(Parts& s, const Worker& w) {
  if (!w.launched) return;
  const WorkerId id = w.row.id;
  if (w.actor) {
    if (s.actors.living(w.actor) == nullptr) s.turn.act(StopWorkerOn{w.row.node, {id, SIGKILL, 0}});
    return;
  }
  const auto* const job = s.jobs.living(w.row.job);
  if (job == nullptr) return;  // the job has ended, and NodeJoined has repeated EndJobOn
  if (job->stopping || job->row.exit_code != 0) {
    s.turn.act(StopWorkerOn{w.row.node, {id, SIGTERM, s.turn.options.stop_grace_ms}});
  }
}

}  // namespace

void on(Parts& s, const WorkerUpdated& event) {
  const auto& [from, update] = event;
  const WorkerId id = update.worker;
  if (!s.workers.contains(id)) {
    if (!id || !s.nodes.contains(from) || update.state == WorkerState::kExited) return;
    attach(s, from, update);
  }
  const Worker& w = s.workers.at(id);
  // A driver reports the exception that ends its program, because its node learns of the process's end only.
  const bool of_driver = !from && !w.launched && w.row.role == "driver" && update.state == WorkerState::kExited;
  if ((w.row.node != from && !of_driver) || w.row.state == WorkerState::kExited) {
    // The worker was declared dead when its start or its node was given up: it must not run on.
    if (w.launched && update.state != WorkerState::kExited) s.turn.act(StopWorkerOn{from, {id, SIGKILL, 0}});
    return;
  }
  s.workers.report(id, update.pid);
  if (update.state == WorkerState::kExited) {
    // The head ended the process of an actor that moves away from a draining node.
    const std::optional<Error> moved = w.moving ? std::optional(actors::node_drained(from)) : std::nullopt;
    return worker_exited(s, id, update.shell_code, moved ? moved : update.cause);
  }
  const bool stops = update.state == WorkerState::kStopped && w.row.state != WorkerState::kStopped;
  s.workers.set_state(id, update.state);
  if (stops) warn_of_stop(s, w);
  const auto a = s.actors.find(w.actor);
  if (a != s.actors.end() && a->second.state == ActorState::kStarting) {
    s.actors.set_pid(w.actor, w.row.pid);
    if (!update.endpoint.empty()) {
      s.actors.take_calls(w.actor, update.endpoint);
      s.turn.act(NotifyActor{a->second});
    }
  }
  end_unwanted(s, w);
}

void on(Parts& s, const WorkerLeaves& event) { s.workers.announce_end(event.worker); }

void on(Parts& s, const WorkerBlocked& event) {
  const Worker* const w = s.workers.living(event.worker);
  if (w == nullptr || event.blocked == (w->lent > 0)) return;
  if (event.blocked) {
    const Resources cpus = s.workers.lend(event.worker);
    source(s, *w) += cpus;
    if (!w->group) s.shares.gives(w->row.job, cpus);
    place_pending(s);
  } else {
    const Resources cpus = s.workers.take_back(event.worker);
    source(s, *w) -= cpus;
    if (!w->group) s.shares.takes(w->row.job, cpus);
  }
}

Result<void> on(Parts& s, const WorkerResumes& event) {
  const Worker* const w = s.workers.living(event.worker);
  if (w == nullptr) return fail(not_found("no running process " + to_string(event.worker)));
  if (w->lent == 0) return {};
  const bool for_others = !w->group && (s.queue.window() || wanted_back(s, w->row.job));
  if (for_others || source(s, *w).units("CPU") < w->lent) return fail(resource_exhausted("other processes have its CPUs"));
  on(s, WorkerBlocked{event.worker, false});
  return {};
}

void on(Parts& s, const WorkerNotStarted& event) {
  const WorkerId id = event.worker;
  const Worker* const w = s.workers.living(id);
  if (w == nullptr || w->row.state != WorkerState::kStarting) return;
  if (w->row.pid != 0) return;  // its node has reported the worker since, on another connection
  worker_exited(s, id, event.exit_code, event.cause);
  s.turn.act(StopWorkerOn{w->row.node, {id, SIGKILL, 0}});  // in case the request arrived and only its answer was lost
}

void on(Parts& s, const WorkerNotReached& event) {
  const auto worker = s.workers.find(event.worker);
  if (worker == s.workers.end()) return;
  if (!s.nodes.lives(worker->second.row.node)) on(s, WorkerNotStarted{event.worker, 126, event.cause});
}

}  // namespace shoal::scheduler
