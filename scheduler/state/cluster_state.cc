#include "scheduler/state/cluster_state.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "actors/cluster/function_worker.h"
#include "runtime/core/check.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using actors::JobState;
using actors::Launch;
using actors::NodeState;
using actors::Resources;
using actors::WorkerState;

namespace {

constexpr int kMaxLooks = 20;  // searches of all nodes per tick

// The environment variables that torchrun sets.
void add_rank_env(Launch& launch, std::int32_t rank, std::int32_t world, std::int32_t local_rank, std::int32_t local_world,
                  std::int32_t node_rank, std::int32_t num_nodes, const std::string& address, std::uint16_t port, JobId job) {
  const auto set = [&](const char* name, const std::string& value) { launch.env.emplace_back(name, value); };
  const auto number = [](std::int32_t n) { return std::to_string(n); };
  set("RANK", number(rank));
  set("WORLD_SIZE", number(world));
  set("LOCAL_RANK", number(local_rank));
  set("LOCAL_WORLD_SIZE", number(local_world));
  set("GROUP_RANK", number(node_rank));
  set("GROUP_WORLD_SIZE", number(num_nodes));
  set("ROLE_NAME", "default");
  set("ROLE_RANK", number(rank));
  set("ROLE_WORLD_SIZE", number(world));
  set("MASTER_ADDR", address);
  set("MASTER_PORT", std::to_string(port));
  set("TORCHELASTIC_RESTART_COUNT", "0");
  set("TORCHELASTIC_MAX_RESTARTS", "0");
  set("TORCHELASTIC_RUN_ID", to_string(job));
}

}  // namespace

// ---- nodes
// -------------------------------------------------------------------------------------------------------------------------

Result<void> ClusterState::node_joined(const actors::RegisterNode& node) {
  if (!node.id) return fail(invalid_argument("a node without an id"));
  // A new node may be a given-up node under a new id, and still have what ended jobs left there.
  const auto notify_ended_jobs = [&] {
    for (const JobId job : ended_jobs_) act(EndJobOn{node.id, job});
  };
  if (nodes_.contains(node.id)) {
    if (nodes_.at(node.id).row.state == NodeState::kDead) {
      return fail(unavailable("node " + to_string(node.id) + " was given up; its workers were declared dead").with_reason("Fenced"));
    }
    Node& n = nodes_.edit(node.id);  // back after a broken connection, or with a new head
    n.row.pid = node.pid;
    n.row.endpoint = node.endpoint;
    n.last_beat = now_;
    n.away = false;
    n.process_report = true;
    for (const auto& [id, w] : workers_) {
      if (w.row.node == node.id) workers_.scratch(id).heard_of = false;
    }
    notify_ended_jobs();
    if (n.leave_sent) act(EndNodeOn{node.id});
    place_pending();
    return {};
  }
  Node& n = nodes_.add(node.id);
  n.row = {node.id, node.host, node.pid, NodeState::kAlive, node.endpoint, node.resources, node.resources, node.labels};
  n.last_beat = now_;
  notify_ended_jobs();
  place_pending();
  return {};
}

void ClusterState::node_beat(NodeId node) {
  if (!nodes_.contains(node)) return;
  Node& n = nodes_.scratch(node);
  n.last_beat = now_;
  if (std::exchange(n.process_report, false)) node_reports(node);
}

void ClusterState::node_reports(NodeId node) {
  std::vector<WorkerId> unknown;
  for (const auto& [id, w] : workers_) {
    if (w.row.node == node && !w.heard_of && w.row.state != WorkerState::kExited) unknown.push_back(id);
  }
  for (const WorkerId id : unknown) {
    const Worker& w = workers_.at(id);
    if (w.launched && w.row.state == WorkerState::kStarting && w.row.pid == 0) {
      start_again(w);
    } else {
      worker_exited(workers_.edit(id), 128 + SIGKILL, unavailable("its node does not know it any more").with_reason("WorkerDied"));
    }
  }
}

// Repeats a start: the head that decided it ended before its request reached the node.
void ClusterState::start_again(const Worker& w) {
  std::optional<actors::StartWorker> message;
  if (const auto a = actors_.find(w.actor); a != actors_.end()) {
    if (const auto gang = gangs_.find(a->second.gang); gang != gangs_.end() && a->second.worker == w.row.id) {
      message = start_of(gang->second, static_cast<std::size_t>(a->second.rank));
    }
  } else if (const auto job = jobs_.find(w.row.job); job != jobs_.end() && !ended(job->second.row.state)) {
    const auto& processes = job->second.processes;
    const auto at = std::find(processes.begin(), processes.end(), w.row.id);
    if (at != processes.end()) message = start_of(job->second, static_cast<std::size_t>(at - processes.begin()));
  }
  if (!message) {
    return worker_exited(workers_.edit(w.row.id), 128 + SIGKILL, cancelled("nobody needs it any more").with_reason("WorkerExited"));
  }
  message->worker = w.row.id;
  act(StartWorkerOn{w.row.node, *std::move(message)});
}

void ClusterState::node_away(NodeId node) {
  if (nodes_.contains(node)) nodes_.scratch(node).away = true;
}

void ClusterState::node_lost(NodeId node, const Error& cause) {
  if (!nodes_.contains(node) || nodes_.at(node).row.state == NodeState::kDead) return;
  nodes_.edit(node).row.state = NodeState::kDead;
  const bool drained = nodes_.at(node).leave_sent;
  const Error lost =
      (drained ? unavailable("its node was drained").with_reason("NodeDrained") : Error(cause)).in("node " + to_string(node));
  act(Disconnect{node, lost});
  const auto leads = [&](const Worker& w) {  // a process whose end ends a job
    const auto j = jobs_.find(w.row.job);
    return j != jobs_.end() && (j->second.driver == w.row.id || std::ranges::count(j->second.processes, w.row.id) > 0);
  };
  // Processes whose end ends a job come last, so that actors die of the node's loss and not of their job's end.
  for (const bool leading : {false, true}) {
    for (const auto& [id, w] : workers_) {
      if (w.row.node == node && w.row.state != WorkerState::kExited && leads(w) == leading) {
        worker_exited(workers_.edit(id), 128 + SIGKILL, lost);
      }
    }
  }
  lose_bundles(node);
  // Gangs that are bound to this node and still wait can never be placed.
  const Error gone = resource_exhausted("the node that it had to be on was lost").with_reason("Unschedulable");
  for (const auto& p : std::deque<Pending>(pending_)) {
    const auto gang = gangs_.find(p.gang);
    if (gang == gangs_.end() || gang->second.spec.where.node != node || gang->second.spec.where.soft) continue;
    end_actor(actors_.edit(gang->second.spec.actors[0].id), gone);
  }
  place_pending();
}

void ClusterState::worker_updated(NodeId from, const actors::WorkerUpdate& update) {
  const WorkerId id = update.worker;
  if (!workers_.contains(id)) {
    if (!id || !nodes_.contains(from) || update.state == WorkerState::kExited) return;
    workers_.add(id).row = {id, from, update.job, update.pid, WorkerState::kStarting, update.role, -1, {}};
    if (jobs_.contains(update.job)) {
      Job& job = jobs_.edit(update.job);
      job.attached = true;
      job.nodes.insert(from);
      if (!job.driver && update.role == "driver") {
        job.driver = id;
        job.row.driver_pid = update.pid;
      }
      // The job ended before this process was reported, so its end was not sent to this node.
      if (ended(job.row.state)) act(EndJobOn{from, update.job});
    }
  }
  const Worker& w = workers_.at(id);
  if (w.row.node != from || w.row.state == WorkerState::kExited) {
    // The worker was declared dead when its start or its node was given up: it must not run on.
    if (w.launched && update.state != WorkerState::kExited) act(StopWorkerOn{from, {id, SIGKILL, 0}});
    return;
  }
  workers_.scratch(id).heard_of = true;
  if (update.pid != 0 && update.pid != w.row.pid) workers_.edit(id).row.pid = update.pid;
  if (update.state == WorkerState::kExited) return worker_exited(workers_.edit(id), update.shell_code, update.cause);
  if (update.state != w.row.state) workers_.edit(id).row.state = update.state;
  const auto a = actors_.find(w.actor);
  if (a != actors_.end() && a->second.state == ActorState::kStarting) {
    if (a->second.pid != w.row.pid) actors_.edit(w.actor).pid = w.row.pid;
    if (!update.endpoint.empty()) {
      ActorRow& row = actors_.edit(w.actor);
      row.endpoint = update.endpoint;
      row.state = ActorState::kAlive;
      act(NotifyActor{row});
    }
  }
  end_unwanted(w);
}

// Repeats a request to end a worker, which may have been lost while its node was away.
void ClusterState::end_unwanted(const Worker& w) {
  if (!w.launched) return;
  const WorkerId id = w.row.id;
  if (w.actor) {
    const auto a = actors_.find(w.actor);
    if (a == actors_.end() || a->second.state == ActorState::kDead) act(StopWorkerOn{w.row.node, {id, SIGKILL, 0}});
    return;
  }
  const auto job = jobs_.find(w.row.job);
  if (job == jobs_.end() || ended(job->second.row.state)) return;  // node_joined() repeated EndJobOn
  if (job->second.stopping || job->second.row.exit_code != 0) act(StopWorkerOn{w.row.node, {id, SIGTERM, options_.stop_grace_ms}});
}

// A head that stood still (a slow disk, a slow machine) has unread heartbeats: that time is not counted as silence.
void ClusterState::overlook_own_silence() {
  const auto still = last_tick_ ? now_ - *last_tick_ - options_.longest_tick : runtime::Duration::zero();
  last_tick_ = now_;
  if (still <= runtime::Duration::zero()) return;
  for (const auto& [id, node] : nodes_) {
    if (node.row.state == NodeState::kAlive) nodes_.scratch(id).last_beat = std::min(now_, node.last_beat + still);
  }
}

void ClusterState::worker_not_started(WorkerId id, int exit_code, const Error& cause) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.row.state != WorkerState::kStarting) return;
  if (it->second.row.pid != 0) return;  // reported by its node since, on another connection
  const NodeId node = it->second.row.node;
  worker_exited(workers_.edit(id), exit_code, cause);
  act(StopWorkerOn{node, {id, SIGKILL, 0}});  // in case the request arrived and only its answer was lost
}

void ClusterState::worker_not_reached(WorkerId id, const Error& cause) {
  const auto worker = workers_.find(id);
  if (worker == workers_.end()) return;
  const auto node = nodes_.find(worker->second.row.node);
  if (node == nodes_.end() || node->second.row.state == NodeState::kDead) worker_not_started(id, 126, cause);
}

void ClusterState::tick() {
  forget_old();
  overlook_own_silence();
  std::vector<NodeId> silent;
  for (const auto& [id, node] : nodes_) {
    if (node.row.state == NodeState::kAlive && now_ - node.last_beat > options_.node_timeout) silent.push_back(id);
  }
  for (const NodeId id : silent) node_lost(id, unavailable("its node stopped answering").with_reason("NodeLost"));
  while (!unattached_.empty() && unattached_.begin()->second <= now_) driver_gone(unattached_.extract(unattached_.begin()).key());
  drain_nodes();
  look_at_windows();
  if (std::any_of(pending_.begin(), pending_.end(),
                  [&](const Pending& p) { return p.not_before != runtime::TimePoint() && p.not_before <= now_; })) {
    place_pending();
  }
  explain_pending();
}

// Searching all nodes for each entry takes time: equal entries are explained once, others a few per tick.
void ClusterState::explain_pending() {
  GangId before{};
  std::string why;
  looks_ = 0;
  for (auto& p : pending_) {
    const bool warns = now_ - p.since >= options_.warn_after;
    if (p.warned || now_ < p.not_before || (p.explained && !warns)) continue;
    if (!p.like || p.like != before) {
      if (++looks_ > kMaxLooks) break;
      why = this->why(p);
    }
    before = p.like;
    p.explained = true;
    set_pending_reason(p, why);
    if (!warns) continue;
    p.warned = true;
    if (p.gang) {
      const Gang& gang = gangs_.at(p.gang);
      act(Warn{gang.spec.job, fmt::format("{}{} is pending: {}", name_of(p),
                                          gang.spec.actors.size() > 1 ? fmt::format(" (gang of {})", gang.spec.actors.size()) : "", why)});
    } else if (p.group) {
      const auto& row = groups_.at(p.group).row;
      if (row.job)
        act(Warn{row.job, fmt::format("placement group {} is pending: {}", row.name.empty() ? to_string(row.id) : row.name, why)});
    } else {
      const Job& job = jobs_.at(p.job);
      act(Warn{p.job, fmt::format("job {} is pending: {}", job.row.name, why)});
      act(NotifyJob{job.row});
    }
  }
}

// Explains the newest entry at once, so that an early query shows the reason; the warning comes later.
void ClusterState::explain_newcomer() {
  if (pending_.empty() || pending_.back().explained) return;
  Pending& p = pending_.back();
  const Pending* const before = p.like && pending_.size() > 1 ? &pending_[pending_.size() - 2] : nullptr;
  if (before != nullptr && before->like == p.like && before->explained) {
    set_pending_reason(p, actors_.at(gangs_.at(before->gang).spec.actors[0].id).pending_reason);
  } else if (looks_ < kMaxLooks) {
    ++looks_;
    set_pending_reason(p, why(p));
  } else {
    return;  // left to the next tick
  }
  p.explained = true;
}

void ClusterState::set_pending_reason(const Pending& p, const std::string& why) {
  if (p.group) {
    if (groups_.at(p.group).row.pending_reason != why) groups_.edit(p.group).row.pending_reason = why;
  } else if (p.job) {
    if (jobs_.at(p.job).row.pending_reason != why) jobs_.edit(p.job).row.pending_reason = why;
  } else {
    for (const auto& a : gangs_.at(p.gang).spec.actors) {
      if (actors_.at(a.id).pending_reason != why) actors_.edit(a.id).pending_reason = why;
    }
  }
}

// ---- placing
// -----------------------------------------------------------------------------------------------------------------------

const ResourceIndex& ClusterState::resource_index() const {
  resource_index_.refresh(nodes_);
  return resource_index_;
}

std::string ClusterState::why(const Pending& p) const {
  if (held_up(p)) return fmt::format("waits its turn: what is free is kept for {}, which has waited for long", window_->name);
  const std::string wished = p.gang ? unschedulable(gangs_.at(p.gang).spec.where) : "";
  return !wished.empty() ? wished : lacks(p) + unschedulable();
}

std::string ClusterState::lacks(const Pending& p) const {
  if (p.group) {
    const Group& group = groups_.at(p.group);
    for (const auto& labels : group.labels) {
      if (!labels.empty() && only(resource_index().capacity(), labels)->empty()) return "no node has the labels " + to_string(labels);
    }
    const Asked could = asked(group, resource_index().capacity());
    if (could.allowed->empty()) return explain(could.wants, *could.allowed);
    if (!place(could.wants, *could.allowed, group.row.strategy))
      return impossible(explain(could.wants, *could.allowed, group.row.strategy));
    return busy(explain(could.wants, *asked(group, resource_index().free()).allowed, group.row.strategy, &*could.allowed));
  }
  const NodeResources& all = resource_index().capacity();
  if (p.job) {
    const auto& wanted = jobs_.at(p.job).wants;
    if (all.empty()) return explain(wanted, all);
    return place(wanted, all) ? busy(explain(wanted, resource_index().free(), actors::Strategy::kPack, &all))
                              : impossible(explain(wanted, all));
  }
  const Gang& gang = gangs_.at(p.gang);
  const auto& where = gang.spec.where;
  if (where.group) {
    const Group& group = groups_.at(where.group);
    const std::string name = group.row.name.empty() ? to_string(group.row.id) : group.row.name;
    if (group.row.state != actors::GroupState::kCreated) {
      return fmt::format("waits for placement group {} ({})", name, actors::to_string(group.row.state));
    }
    return busy(fmt::format("needs {}; {} of placement group {} {} not that much free", gang.wants[0].to_string(),
                            where.bundle < 0 ? "the bundles" : fmt::format("bundle {}", where.bundle), name,
                            where.bundle < 0 ? "have" : "has"));
  }
  const Allowed could = only(all, where, gang.wants);
  if (could->empty() && !where.labels.empty()) return "no node has the labels " + to_string(where.labels);
  if (could->empty()) return explain(gang.wants, *could);
  if (!place(gang.wants, *could)) return impossible(explain(gang.wants, *could));
  return busy(explain(gang.wants, *only(resource_index().free(), where, gang.wants), actors::Strategy::kPack, &all));
}

ClusterState::Allowed ClusterState::only(const NodeResources& room, const std::vector<actors::LabelMatch>& labels) const {
  if (labels.empty()) return Allowed(&room);
  NodeResources some;
  for (const auto& n : room) {
    if (matches(nodes_.at(n.first).row.labels, labels)) some.insert(some.end(), n);
  }
  return Allowed(std::move(some));
}

ClusterState::Allowed ClusterState::only(const NodeResources& room, const actors::Where& where, const std::vector<Resources>& wants) const {
  if (!where.node) return only(room, where.labels);
  const auto wished = [&](const NodeResources& from) {
    const auto it = from.find(where.node);
    if (it == from.end() || !matches(nodes_.at(where.node).row.labels, where.labels)) return NodeResources();
    return NodeResources{*it};
  };
  if (where.soft && !place(wants, wished(resource_index().capacity()))) return only(room, where.labels);
  return Allowed(wished(room));
}

Load ClusterState::load() const {
  Load out;
  for (const auto& [id, n] : nodes_) out[id] = n.workers;
  return out;
}

NodeId ClusterState::home_of(const Gang& gang) const {
  const auto job = jobs_.find(gang.spec.job);
  for (const WorkerId id : {gang.spec.creator, job == jobs_.end() ? WorkerId() : job->second.driver}) {
    if (const auto w = workers_.find(id); w != workers_.end()) return w->second.row.node;
  }
  return {};
}

std::optional<std::vector<ClusterState::Site>> ClusterState::place_gang(const Gang& gang) const {
  const auto& where = gang.spec.where;
  if (where.group) return place_in_group(gang, groups_.at(where.group));
  const bool light = gang.wants.size() == 1 && gang.wants[0].empty();
  if (light && !where.node && where.labels.empty() && where.prefers.empty()) {
    if (const auto node = resource_index().quietest(home_of(gang))) return std::vector<Site>{{*node, -1}};
  }
  Allowed allowed = only(resource_index().free_for(gang.wants), where, gang.wants);
  if (light) {
    NodeResources with_cpus;
    for (const auto& n : *allowed) {
      if (nodes_.at(n.first).row.total.units("CPU") > 0) with_cpus.insert(with_cpus.end(), n);
    }
    if (!with_cpus.empty()) allowed = Allowed(std::move(with_cpus));
  }
  const auto placed = [&](const NodeResources& room) {
    return where.spread || light ? place(gang.wants, room, actors::Strategy::kSpread, load())
                                 : place(gang.wants, room, actors::Strategy::kPack);
  };
  std::optional<std::vector<NodeId>> nodes;
  if (!where.prefers.empty()) nodes = placed(*only(*allowed, where.prefers));
  if (!nodes) nodes = placed(*allowed);
  if (!nodes) return std::nullopt;
  std::vector<Site> out;
  for (const NodeId n : *nodes) out.push_back({n, -1});
  return out;
}

WorkerId ClusterState::start_worker(const Site& site, GroupId group, actors::StartWorker message, const Resources& held) {
  message.worker = random_.id<WorkerId>();
  const WorkerId id = message.worker;
  if (jobs_.contains(message.job) && !jobs_.at(message.job).nodes.contains(site.node)) jobs_.edit(message.job).nodes.insert(site.node);
  Worker& w = workers_.add(id);
  w.row = {id, site.node, message.job, 0, WorkerState::kStarting, message.label, message.rank, {}};
  w.held = held;
  w.group = group;
  w.bundle = site.bundle;
  w.launched = true;
  ++nodes_.scratch(site.node).workers;
  if (!group) shares_.takes(message.job, held);
  act(StartWorkerOn{site.node, std::move(message)});
  return id;
}

void ClusterState::start_gang(Gang& gang, const std::vector<Site>& sites) {
  const GroupId group = gang.spec.where.group;
  gang.started = now_;
  for (std::size_t i = 0; i < gang.spec.actors.size(); ++i) {
    const auto& spec = gang.spec.actors[i];
    const Site& site = sites[i];
    (group ? groups_.scratch(group).free.at(static_cast<std::size_t>(site.bundle)) : nodes_.scratch(site.node).row.available) -=
        spec.resources;
    ActorRow& row = actors_.edit(spec.id);
    row.node = site.node;
    row.state = ActorState::kStarting;
    row.pending_reason.clear();
    row.cause.reset();
    row.worker = start_worker(site, group, start_of(gang, i), spec.resources);
    workers_.edit(row.worker).actor = spec.id;
    if (gang.spec.detached) jobs_.edit(gang.spec.job).driver = row.worker;
  }
}

actors::StartWorker ClusterState::start_of(const Gang& gang, std::size_t member) const {
  const auto& spec = gang.spec.actors.at(member);
  Launch launch = gang.spec.launch;
  const std::uint32_t restarts = actors_.at(spec.id).num_restarts;
  if (restarts > 0) launch.env.emplace_back("SHOAL_RESTARTS", std::to_string(restarts));
  const bool alone = gang.spec.actors.size() == 1;
  const std::int32_t rank = alone ? -1 : static_cast<std::int32_t>(member);
  const bool of_functions = actors::is_function_class(spec.class_name);
  const bool run_again = may_restart(actors_.at(spec.id)) || of_functions;  // functions are retried
  return {{},
          gang.spec.job,
          std::move(launch),
          rank,
          of_functions ? actors::kFunctionWorker : spec.class_name,
          spec.resources.units("GPU"),
          run_again};
}

actors::StartWorker ClusterState::start_of(const Job& job, std::size_t rank) const {
  if (job.row.num_workers == 0) return {{}, job.row.id, job.launches.at(rank), -1, "driver", -1};
  return {{}, job.row.id, job.launches.at(rank), static_cast<std::int32_t>(rank), fmt::format("rank {}", rank), -1};
}

void ClusterState::start_job(Job& job) {
  for (std::size_t i = 0; i < job.launches.size(); ++i) {
    job.processes.push_back(start_worker({job.placed[i], -1}, {}, start_of(job, i), job.wants[i]));
  }
  job.running = job.processes.size();
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms_;
  job.row.pending_reason.clear();
  act(NotifyJob{job.row});
}

// ---- jobs
// --------------------------------------------------------------------------------------------------------------------------

JobId ClusterState::driver_joined(const actors::RegisterDriver& driver) {
  if (const auto it = jobs_.find(driver.job); it != jobs_.end() && !ended(it->second.row.state)) return driver.job;
  const auto id = random_.id<JobId>();
  Job& job = jobs_.add(id);
  job.row.id = id;
  job.row.name = driver.name;
  job.row.driver_pid = driver.pid;
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms_;
  return id;
}

void ClusterState::driver_ended(JobId id) {
  const auto it = jobs_.find(id);
  // A submitted job ends with its processes, not with one driver's orderly end.
  if (it == jobs_.end() || ended(it->second.row.state) || !it->second.processes.empty()) return;
  end_job(jobs_.edit(id), JobState::kSucceeded);
}

void ClusterState::driver_gone(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || ended(it->second.row.state) || it->second.attached) return;
  Job& job = jobs_.edit(id);
  job.row.exit_code = 128 + SIGKILL;
  job.row.cause = unavailable("its driver ended before it had joined a node").with_reason("WorkerDied");
  end_job(job, JobState::kFailed);
}

Result<JobId> ClusterState::job_submitted(const actors::JobSpec& spec) {
  const std::size_t count = std::max<std::size_t>(1, spec.num_workers);
  std::vector<Resources> wanted(count, spec.resources);
  const NodeResources& capacity = resource_index().capacity();
  if (!spec.wait && !place(wanted, capacity)) return fail(infeasible(explain(wanted, capacity)));
  if (const auto& wished = spec.submission.id; !wished.empty()) {
    const bool taken = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& j) {
      return j.second.row.submission.id == wished || to_string(j.first) == wished;  // two names of one job
    });
    if (taken) return fail(invalid_argument("a job was submitted as " + wished + " already").with_reason("NameTaken"));
  }
  const auto id = random_.id<JobId>();
  Job& job = jobs_.add(id);
  job.order = next_order_++;
  job.row.id = id;
  job.row.name = spec.name;
  job.row.num_workers = spec.num_workers;
  job.row.submission = spec.submission;
  if (job.row.submission.id.empty()) job.row.submission.id = to_string(id);
  job.launches.assign(count, spec.launch);
  job.wants = std::move(wanted);
  pending_.push_back({{}, id, {}, now_});
  place_pending();
  explain_newcomer();
  return id;
}

void ClusterState::port_found(JobId id, Result<std::uint16_t> port) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || ended(it->second.row.state)) return;
  Job& job = jobs_.edit(id);
  if (!port) {
    job.row.cause = port.error();
    job.row.exit_code = 125;
    give_back_places(job);
    return end_job(job, JobState::kFailed);
  }
  // Placement packs, so the ranks of a node are contiguous.
  std::vector<NodeId> nodes;
  std::map<NodeId, std::int32_t> local_world;
  for (const NodeId n : job.placed) {
    if (!local_world.contains(n)) nodes.push_back(n);
    ++local_world[n];
  }
  std::map<NodeId, std::int32_t> next_local;
  for (std::size_t i = 0; i < job.launches.size(); ++i) {
    const NodeId n = job.placed[i];
    const auto node_rank = static_cast<std::int32_t>(std::find(nodes.begin(), nodes.end(), n) - nodes.begin());
    add_rank_env(job.launches[i], static_cast<std::int32_t>(i), static_cast<std::int32_t>(job.launches.size()), next_local[n]++,
                 local_world[n], node_rank, static_cast<std::int32_t>(nodes.size()), nodes_.at(job.placed[0]).row.host, *port, id);
  }
  start_job(job);
}

void ClusterState::port_not_asked(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || it->second.row.state != JobState::kPending) return;
  give_back_places(jobs_.scratch(id));
  Pending again{{}, id, {}, now_};
  again.not_before = now_ + options_.first_pause;  // the connection may be about to break
  pending_.push_back(again);
  place_pending();
}

void ClusterState::give_back_places(Job& job) {
  for (std::size_t i = 0; i < job.placed.size(); ++i) nodes_.scratch(job.placed[i]).row.available += job.wants[i];
  job.placed.clear();
}

Result<void> ClusterState::job_stopped(JobId id, bool force) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return fail(not_found("no job " + to_string(id)));
  if (ended(it->second.row.state)) return {};
  Job& job = jobs_.edit(id);
  job.stopping = true;
  if (job.running == 0) {  // a pending job, or a driver's
    give_back_places(job);
    if (const auto w = workers_.find(job.driver); w != workers_.end() && w->second.row.state != WorkerState::kExited) {
      act(StopWorkerOn{w->second.row.node, {job.driver, force ? SIGKILL : SIGTERM, options_.stop_grace_ms}});
    }
    end_job(job, JobState::kStopped);
    return {};
  }
  stop_processes(job, force ? SIGKILL : SIGTERM);
  return {};
}

Result<void> ClusterState::job_deleted(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return fail(not_found("no job " + to_string(id)));
  if (!ended(it->second.row.state)) {
    return fail(invalid_argument(fmt::format("job {} is {}", to_string(id), to_string(it->second.row.state))).with_hint("stop it first"));
  }
  jobs_.erase(id);  // ended_jobs_ keeps it for nodes that come back
  act(ForgetJob{id});
  return {};
}

void ClusterState::stop_processes(const Job& job, int signal) {
  for (const WorkerId p : job.processes) {
    const auto w = workers_.find(p);  // no row for a process that ended long ago
    if (w == workers_.end() || w->second.row.state == WorkerState::kExited) continue;
    act(StopWorkerOn{w->second.row.node, {p, signal, options_.stop_grace_ms}});
  }
}

void ClusterState::job_process_exited(Job& job, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  --job.running;
  if (shell_code != 0 && job.row.exit_code == 0 && !job.row.cause) {  // only the first failure counts
    job.row.exit_code = shell_code;
    if (cause) {
      job.row.cause = worker.row.rank >= 0 ? Error(*cause).in(worker.row.role) : *cause;
    }
    stop_processes(job, SIGTERM);
  }
  if (job.running > 0) return;
  end_job(job, job.stopping ? JobState::kStopped : job.row.exit_code == 0 ? JobState::kSucceeded : JobState::kFailed);
}

void ClusterState::end_job(Job& job, JobState state) {
  if (ended(job.row.state)) return;
  job.row.state = state;
  job.row.ended_unix_ms = unix_ms_;
  job.order = next_order_++;  // order of ends, independent of the wall clock
  job.row.pending_reason.clear();
  const JobId id = job.row.id;
  std::erase_if(pending_, [&](const Pending& p) {
    return p.job == id || (p.gang && gangs_.at(p.gang).spec.job == id) || (p.group && groups_.at(p.group).row.job == id);
  });
  std::vector<GangId> gangs;
  for (const auto& [gang, g] : gangs_) {
    if (g.spec.job == id) gangs.push_back(gang);
  }
  for (const GangId gang : gangs) forget_gang(gang);
  const Error over = cancelled("its job ended").with_reason("JobEnded");
  for (const auto& [actor, row] : actors_) {
    if (row.job == id && row.state != ActorState::kDead) kill_actor_row(actors_.edit(actor), over);
  }
  std::vector<GroupId> groups;
  for (const auto& [group, g] : groups_) {
    if (g.row.job == id) groups.push_back(group);
  }
  for (const GroupId group : groups) {
    if (groups_.contains(group)) remove_group(groups_.edit(group), over);
  }
  std::erase_if(hosted_, [&](const auto& h) { return h.first.first == id; });
  for (const NodeId n : job.nodes) {
    if (nodes_.at(n).row.state == NodeState::kAlive) act(EndJobOn{n, id});
  }
  act(NotifyJob{job.row});
  ended_jobs_.push_back(id);
  place_pending();
}

// ---- workers
// -----------------------------------------------------------------------------------------------------------------------

Resources& ClusterState::source(const Worker& worker) {
  const auto group = groups_.find(worker.group);
  const auto bundle = static_cast<std::size_t>(worker.bundle);
  // A lost or removed bundle returned only its free part to the node. Its workers return the rest there directly.
  const bool reserved = group != groups_.end() && group->second.row.state != actors::GroupState::kRemoved &&
                        group->second.row.nodes.at(bundle) == worker.row.node;
  return reserved ? groups_.scratch(worker.group).free.at(bundle) : nodes_.scratch(worker.row.node).row.available;
}

void ClusterState::release(Worker& worker) {
  if (worker.launched) --nodes_.scratch(worker.row.node).workers;
  source(worker) += worker.held;
  if (!worker.group) shares_.gives(worker.row.job, worker.held);
  worker.held = {};
  worker.lent = 0;
}

void ClusterState::worker_leaves(WorkerId id) {
  if (workers_.contains(id)) workers_.edit(id).leaving = true;
}

void ClusterState::worker_blocked(WorkerId id, bool blocked) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.row.state == WorkerState::kExited || blocked == (it->second.lent > 0)) return;
  Worker& w = workers_.scratch(id);
  Resources cpus;
  cpus.set_units("CPU", blocked ? w.held.units("CPU") : w.lent);
  if (blocked) {
    w.held -= cpus;
    source(w) += cpus;
    if (!w.group) shares_.gives(w.row.job, cpus);
  } else {
    source(w) -= cpus;
    w.held += cpus;
    if (!w.group) shares_.takes(w.row.job, cpus);
  }
  w.lent = blocked ? cpus.units("CPU") : 0;
  if (blocked) place_pending();
}

Result<void> ClusterState::worker_resumes(WorkerId id) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.row.state == WorkerState::kExited) return fail(not_found("no running process " + to_string(id)));
  if (it->second.lent == 0) return {};
  const Worker& w = it->second;
  const bool for_others = !w.group && (window_ || wanted_back(w.row.job));
  if (for_others || source(w).units("CPU") < w.lent) return fail(resource_exhausted("others have its CPUs"));
  worker_blocked(id, false);
  return {};
}

void ClusterState::worker_exited(Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  worker.row.state = WorkerState::kExited;
  const auto of = jobs_.find(worker.row.job);
  const bool over = of != jobs_.end() && ended(of->second.row.state) && worker.row.role != "driver";
  // A SIGKILL after the end of the job is no failure.
  worker.row.cause = over && shell_code == 128 + SIGKILL ? cancelled("ended with its job").with_reason("JobEnded") : cause;
  release(worker);
  ended_workers_.push_back(worker.row.id);
  const WorkerId id = worker.row.id;
  const Error why = cause.value_or(unavailable("its process ended").with_reason("WorkerExited"));
  bool restarts = false;
  auto inside = hosted_in_.extract(id);
  std::vector<ActorId> ends = inside ? std::move(inside.mapped()) : std::vector<ActorId>();
  if (worker.actor) ends.push_back(worker.actor);
  for (const ActorId actor : ends) {
    const auto row = actors_.find(actor);
    if (row == actors_.end() || row->second.worker != id || row->second.state == ActorState::kDead) continue;
    if (restart_actor(actors_.edit(actor), worker, shell_code, why)) {
      restarts = true;
    } else {
      kill_actor_row(actors_.edit(actor), why);
    }
  }
  end_made_by(worker, why);  // before anything is placed again
  const auto it = jobs_.find(worker.row.job);
  if (it != jobs_.end() && !ended(it->second.row.state)) {
    Job& job = jobs_.edit(it->first);
    if (std::find(job.processes.begin(), job.processes.end(), id) != job.processes.end()) {
      job_process_exited(job, worker, shell_code, cause);
    } else if (job.driver == id && !restarts) {
      job.row.exit_code = shell_code;
      if (job.detached && shell_code == 0) {
        end_job(job, JobState::kSucceeded);  // an end by itself
      } else {
        job.row.cause = why;
        end_job(job, JobState::kFailed);  // no orderly end
      }
    }
  }
  place_pending();
}

// ---- memory
// ----------------------------------------------------------------------------------------------------------------------

void ClusterState::forget_old() {
  while (ended_workers_.size() > options_.max_ended_rows) {
    workers_.erase(ended_workers_.front());
    ended_workers_.pop_front();
  }
  while (ended_actors_.size() > options_.max_ended_rows) {
    actors_.erase(ended_actors_.front());
    ended_actors_.pop_front();
  }
  while (ended_jobs_.size() > options_.max_ended_rows) {
    jobs_.erase(ended_jobs_.front());
    ended_jobs_.pop_front();
  }
  while (removed_groups_.size() > options_.max_ended_rows) {
    groups_.erase(removed_groups_.front());
    removed_groups_.pop_front();
  }
}

}  // namespace shoal::scheduler
