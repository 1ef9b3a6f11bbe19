// Events of nodes: connections, silence, cordons and drains, and the tick.
#include <algorithm>
#include <csignal>

#include "scheduler/state/bounds.h"
#include "scheduler/state/endings.h"
#include "scheduler/state/events.h"
#include "scheduler/state/explain.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::GroupState;
using actors::NodeScheduling;
using actors::NodeState;
using actors::WorkerState;
using rows::Gang;
using rows::Worker;

namespace {

// Repeats a start: the head that decided it ended before its request reached the node.
void start_again(Parts& s, const Worker& w) {
  std::optional<actors::StartWorker> message;
  if (const auto a = s.actors.find(w.actor); a != s.actors.end()) {
    if (const auto gang = s.gangs.find(a->second.gang); gang != s.gangs.end() && a->second.worker == w.row.id) {
      message = start_of(s, gang->second, static_cast<std::size_t>(a->second.rank));
    }
  } else if (const auto* job = s.jobs.living(w.row.job)) {
    const auto at = std::find(job->processes.begin(), job->processes.end(), w.row.id);
    if (at != job->processes.end()) message = start_of(*job, rank_places(*job).at(static_cast<std::size_t>(at - job->processes.begin())));
  }
  if (!message) {
    return worker_exited(s, w.row.id, 128 + SIGKILL, cancelled("no actor or job needs it").with_reason("WorkerExited"));
  }
  message->worker = w.row.id;
  s.turn.act(StartWorkerOn{w.row.node, *std::move(message)});
}

// Ends workers that a node has not reported since it joined again. To be called once it has reported all that it has.
void end_unreported(Parts& s, NodeId node) {
  const auto unreported = s.workers.unreported(node);
  if (unreported.empty()) return;
  place_after(s, [&] {
    for (const WorkerId id : unreported) {
      const Worker& w = s.workers.at(id);
      if (w.launched && w.row.state == WorkerState::kStarting && w.row.pid == 0) {
        start_again(s, w);
      } else {
        worker_exited(s, id, 128 + SIGKILL, unavailable("its node has no such process any more").with_reason("WorkerDied"));
      }
    }
  });
}

// Gives up the bundles on a lost node. Called after the node's workers have exited and returned what they held of them.
void lose_bundles(Parts& s, NodeId node) {
  for (const auto& [id, group] : s.groups) {
    if (group.row.state == GroupState::kRemoved || std::ranges::count(group.row.nodes, node) == 0) continue;
    const bool waited = group.row.state != GroupState::kCreated;
    for (const auto& bundle : s.groups.lose(id, node)) {
      s.nodes.free(node) += bundle.free;
      s.shares.gives(group.row.job, bundle.size);
    }
    if (waited) {
      s.queue.try_again(id);
    } else {
      s.queue.add({{}, {}, id, s.turn.now});
    }
    s.turn.act(NotifyGroup{group.row});
  }
}

// Gangs that are bound to this node and still wait can never be placed.
void end_bound_to(Parts& s, NodeId node) {
  const Error gone = resource_exhausted("its required node was lost").with_reason("Unschedulable");
  for (const auto& p : std::deque<Pending>(s.queue.entries())) {
    const auto gang = s.gangs.find(p.gang);
    if (gang == s.gangs.end() || gang->second.spec.where.node != node || gang->second.spec.where.soft) continue;
    end_actor(s, gang->second.spec.actors[0].id, gone);
  }
}

// Ends restartable actors once another node has room for them, so that they restart there.
void move_actors(Parts& s, NodeId node) {
  NodeResources elsewhere = s.nodes.index().free();
  const auto take_place = [&](const Gang& gang) {
    const auto nodes = place(gang.wants, *s.nodes.only(elsewhere, gang.spec.where, gang.wants));
    if (nodes) elsewhere.at(nodes->front()) -= gang.wants.front();
    return nodes.has_value();
  };
  std::vector<WorkerId> staying;
  for (const auto& [id, w] : s.workers) {
    const auto actor = s.actors.find(w.actor);
    if (w.row.node != node || w.row.state == WorkerState::kExited || actor == s.actors.end()) continue;
    const auto gang = s.gangs.find(actor->second.gang);
    if (actor->second.state == ActorState::kDead || gang == s.gangs.end() || gang->second.spec.where.group) continue;
    if (w.moving) {
      (void)take_place(gang->second);  // an actor that is being moved still needs its room elsewhere
    } else if (actor->second.state == ActorState::kAlive && !w.leaving && may_restart(actor->second)) {
      staying.push_back(id);
    }
  }
  for (const WorkerId id : staying) {
    if (!take_place(s.gangs.at(s.actors.at(s.workers.at(id).actor).gang))) continue;
    s.workers.move(id);
    s.turn.act(StopWorkerOn{node, {id, SIGKILL, 0}});
  }
}

// True if the cluster ends with this node: no other living one has a head on its host.
bool ends_cluster(const Parts& s, const rows::Node& node) {
  return node.row.beside_head() && std::none_of(s.nodes.begin(), s.nodes.end(), [&](const auto& n) {
           return n.first != node.row.id && s.nodes.lives(n.first) && !n.second.leave_sent && n.second.row.beside_head();
         });
}

void drain_nodes(Parts& s) {
  for (const NodeId id : s.nodes.withheld()) {
    const rows::Node& node = s.nodes.at(id);
    if (node.row.scheduling() != NodeScheduling::kDraining || node.leave_sent) continue;
    move_actors(s, id);
    const bool last = ends_cluster(s, node);  // then it waits for the work of all nodes, and for the ends of those that drain, too
    const auto drains = [&](NodeId n) { return n != id && s.nodes.at(n).row.scheduling() == NodeScheduling::kDraining; };
    const bool busy =
        std::any_of(s.workers.begin(), s.workers.end(),
                    [&](const auto& w) { return w.second.row.state != WorkerState::kExited && (w.second.row.node == id || last); }) ||
        (last && std::any_of(s.nodes.withheld().begin(), s.nodes.withheld().end(), drains));
    if (busy && s.turn.now < node.drain_until) continue;
    s.nodes.set_leave_sent(id);
    s.turn.act(EndNodeOn{id});
  }
}

}  // namespace

Result<void> on(Parts& s, const NodeJoined& event) {
  const auto& node = event.node;
  if (!node.id) return fail(invalid_argument("the node has no id"));
  SHOAL_OK(check_bounds(node));
  const bool known = s.nodes.contains(node.id);
  if (known && !s.nodes.lives(node.id)) {
    return fail(unavailable("node " + to_string(node.id) + " was declared dead, and its workers with it").with_reason("Fenced"));
  }
  if (known) {
    s.nodes.join_again(node, s.turn.now);
    s.workers.expect_reports(node.id);
  } else {
    s.nodes.join(node, s.turn.now);
  }
  // A new node may be a given-up one under a new id. It may then still have memory of jobs that ended
  // meanwhile, so it gets the ends of all ended jobs.
  for (const JobId job : s.jobs.ended_jobs()) s.turn.act(EndJobOn{node.id, job});
  if (s.nodes.at(node.id).leave_sent) s.turn.act(EndNodeOn{node.id});
  place_pending(s);
  return {};
}

void on(Parts& s, const NodeBeat& event) {
  if (s.nodes.beat(event.node, s.turn.now)) end_unreported(s, event.node);
}

void on(Parts& s, const NodeAway& event) { s.nodes.lose_connection(event.node); }

void on(Parts& s, const NodeLost& event) {
  const NodeId node = event.node;
  if (!s.nodes.lives(node)) return;
  s.nodes.die(node);
  const bool drained = s.nodes.at(node).leave_sent;
  const Error lost = drained ? actors::node_drained(node) : Error(event.cause).in("node " + to_string(node));
  s.turn.act(Disconnect{node, lost});
  const auto leads = [&](const Worker& w) {  // a process whose end ends a job
    const auto j = s.jobs.find(w.row.job);
    return j != s.jobs.end() && (j->second.driver == w.row.id || std::ranges::count(j->second.processes, w.row.id) > 0);
  };
  // Processes whose end ends a job come last, so that actors die of the node's loss and not of their job's end.
  place_after(s, [&] {
    for (const bool leading : {false, true}) {
      for (const auto& [id, w] : s.workers) {
        if (w.row.node == node && w.row.state != WorkerState::kExited && leads(w) == leading) {
          worker_exited(s, id, 128 + SIGKILL, lost);
        }
      }
    }
    lose_bundles(s, node);
    end_bound_to(s, node);
  });
}

Result<void> on(Parts& s, const SchedulingSet& event) {
  SHOAL_OK(s.nodes.schedule(event.wish, s.turn.now, s.turn.unix_ms));
  place_pending(s);
  drain_nodes(s);
  return {};
}

void on(Parts& s, const Tick&) {
  const auto& options = s.turn.options;
  const auto now = s.turn.now;
  s.workers.forget_old(options.max_ended_rows);
  s.actors.forget_old(options.max_ended_rows);
  s.jobs.forget_old(options.max_ended_rows);
  s.groups.forget_old(options.max_ended_rows);
  s.jobs.put_off_deadlines(s.nodes.tick(now, options.longest_tick));
  const Error silent = unavailable("its node stopped answering").with_reason("NodeLost");
  for (const NodeId id : s.nodes.silent(now, options.node_timeout)) on(s, NodeLost{id, silent});
  while (const auto job = s.jobs.take_unattached(now)) on(s, DriverGone{*job});
  drain_nodes(s);
  check_windows(s);
  if (s.queue.any_rested(now)) place_pending(s);
  explain_pending(s);
}

}  // namespace shoal::scheduler
