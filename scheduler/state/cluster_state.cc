#include "scheduler/state/cluster_state.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

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

// What torchrun gives its processes.
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
  // Also a new node may have been another one that was given up, with what jobs left there.
  const auto tell_ended_jobs = [&] {
    for (const JobId job : ended_jobs_) act(EndJobOn{node.id, job});
  };
  if (const auto it = nodes_.find(node.id); it != nodes_.end()) {
    if (it->second.row.state == NodeState::kDead) {
      return fail(unavailable("node " + to_string(node.id) + " was given up; its workers were declared dead").with_reason("Fenced"));
    }
    it->second.row.pid = node.pid;  // its connection broke and it is back
    it->second.row.endpoint = node.endpoint;
    it->second.last_beat = now_;
    it->second.away = false;
    tell_ended_jobs();
    place_pending();
    return {};
  }
  auto& n = nodes_[node.id];
  n.row = {node.id, node.host, node.pid, NodeState::kAlive, node.endpoint, node.resources, node.resources, node.labels};
  n.last_beat = now_;
  act(PersistNode{n.row});
  tell_ended_jobs();
  place_pending();
  return {};
}

void ClusterState::node_beat(NodeId node) {
  if (const auto it = nodes_.find(node); it != nodes_.end()) it->second.last_beat = now_;
}

void ClusterState::node_away(NodeId node) {
  if (const auto it = nodes_.find(node); it != nodes_.end()) it->second.away = true;
}

void ClusterState::node_lost(NodeId node, const Error& cause) {
  const auto it = nodes_.find(node);
  if (it == nodes_.end() || it->second.row.state == NodeState::kDead) return;
  it->second.row.state = NodeState::kDead;
  act(PersistNode{it->second.row});
  act(Disconnect{node});
  const Error lost = Error(cause).in("node " + to_string(node));
  for (auto& [id, w] : workers_) {
    if (w.row.node == node && w.row.state != WorkerState::kExited) worker_exited(w, 128 + SIGKILL, lost);
  }
  lose_bundles(node);
  // Who has to be on this node, and waited for room there, waits for nothing.
  const Error gone = resource_exhausted("the node that it had to be on was lost").with_reason("Unschedulable");
  for (const auto& p : std::deque<Pending>(pending_)) {
    const auto gang = gangs_.find(p.gang);
    if (gang == gangs_.end() || gang->second.spec.where.node != node || gang->second.spec.where.soft) continue;
    end_actor(actors_.at(gang->second.spec.actors[0].id), gone);
  }
  place_pending();
}

void ClusterState::worker_updated(NodeId from, const actors::WorkerUpdate& update) {
  auto it = workers_.find(update.worker);
  if (it == workers_.end()) {
    if (!update.worker || !nodes_.contains(from) || update.state == WorkerState::kExited) return;
    it = workers_.emplace(update.worker, Worker{}).first;
    it->second.row = {update.worker, from, update.job, update.pid, WorkerState::kStarting, update.role, -1, {}};
    if (const auto job = jobs_.find(update.job); job != jobs_.end()) {
      job->second.attached = true;
      if (!job->second.driver && update.role == "driver") {
        job->second.driver = update.worker;
        job->second.row.driver_pid = update.pid;
      }
    }
  }
  Worker& w = it->second;
  if (w.row.node != from || w.row.state == WorkerState::kExited) {
    // Its start was given up, or its node was: it was declared dead and shall not run on.
    if (w.launched && update.state != WorkerState::kExited) act(StopWorkerOn{from, {update.worker, SIGKILL, 0}});
    return;
  }
  if (update.pid != 0) w.row.pid = update.pid;
  if (update.state == WorkerState::kExited) return worker_exited(w, update.shell_code, update.cause);
  w.row.state = update.state;
  const auto a = actors_.find(w.actor);
  if (a != actors_.end() && a->second.state == ActorState::kStarting) {
    a->second.pid = w.row.pid;
    if (!update.endpoint.empty()) {
      a->second.endpoint = update.endpoint;
      a->second.state = ActorState::kAlive;
      act(TellActor{a->second});
    }
  }
  end_unwanted(w);
}

// The word to end a worker may have been lost while its node was away.
void ClusterState::end_unwanted(const Worker& w) {
  if (!w.launched) return;
  const WorkerId id = w.row.id;
  if (w.actor) {
    const auto a = actors_.find(w.actor);
    if (a == actors_.end() || a->second.state == ActorState::kDead) act(StopWorkerOn{w.row.node, {id, SIGKILL, 0}});
    return;
  }
  const auto job = jobs_.find(w.row.job);
  if (job == jobs_.end() || ended(job->second.row.state)) return;  // EndJobOn was said again
  if (job->second.stopping || job->second.row.exit_code != 0) act(StopWorkerOn{w.row.node, {id, SIGTERM, options_.stop_grace_ms}});
}

void ClusterState::worker_not_started(WorkerId id, int exit_code, const Error& cause) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.row.state != WorkerState::kStarting) return;
  if (it->second.row.pid != 0) return;  // its node has told of it since, on another connection
  const NodeId node = it->second.row.node;
  worker_exited(it->second, exit_code, cause);
  act(StopWorkerOn{node, {id, SIGKILL, 0}});  // the request may have arrived, and only the answer not
}

void ClusterState::tick() {
  std::vector<NodeId> silent;
  for (const auto& [id, node] : nodes_) {
    if (node.row.state == NodeState::kAlive && now_ - node.last_beat > options_.node_timeout) silent.push_back(id);
  }
  for (const NodeId id : silent) node_lost(id, unavailable("its node stopped answering").with_reason("NodeLost"));
  if (std::any_of(pending_.begin(), pending_.end(),
                  [&](const Pending& p) { return p.not_before != runtime::TimePoint() && p.not_before <= now_; })) {
    place_pending();
  }
  for (auto& p : pending_) {
    if (p.warned || now_ < p.not_before || now_ - p.since < options_.warn_after) continue;
    p.warned = true;
    const std::string why = this->why(p);
    if (p.gang) {
      const Gang& gang = gangs_.at(p.gang);
      for (const auto& a : gang.spec.actors) actors_.at(a.id).pending_reason = why;
      act(Warn{gang.spec.job, fmt::format("actor {}{} is pending: {}", gang.spec.actors[0].class_name,
                                          gang.spec.actors.size() > 1 ? fmt::format(" (gang of {})", gang.spec.actors.size()) : "", why)});
    } else if (p.group) {
      auto& row = groups_.at(p.group).row;
      row.pending_reason = why;
      if (row.job)
        act(Warn{row.job, fmt::format("placement group {} is pending: {}", row.name.empty() ? to_string(row.id) : row.name, why)});
    } else {
      Job& job = jobs_.at(p.job);
      job.row.pending_reason = why;
      act(Warn{p.job, fmt::format("job {} is pending: {}", job.row.name, why)});
      act(TellJob{job.row});
    }
  }
}

// ---- placing
// -----------------------------------------------------------------------------------------------------------------------

Room ClusterState::room() const {
  Room out;
  for (const auto& [id, n] : nodes_) {
    if (takes_work(id)) out[id] = n.row.available;
  }
  return out;
}

bool ClusterState::takes_work(NodeId node) const {
  const Node& n = nodes_.at(node);
  return n.row.state == NodeState::kAlive && !n.away;
}

Room ClusterState::capacity() const {
  Room out;
  for (const auto& [id, n] : nodes_) {
    if (n.row.state == NodeState::kAlive) out[id] = n.row.total;
  }
  return out;
}

std::string ClusterState::why(const Pending& p) const {
  if (p.group) {
    const Group& group = groups_.at(p.group);
    const auto wanted = missing_bundles(group);
    const Room could = only(capacity(), group.labels);
    if (could.empty() && !group.labels.empty()) return "no node has the labels " + to_string(group.labels);
    return explain(wanted, place(wanted, could, group.row.strategy) ? only(room(), group.labels) : could, group.row.strategy);
  }
  if (p.job) {
    const auto& wanted = jobs_.at(p.job).wants;
    return explain(wanted, place(wanted, capacity()) ? room() : capacity());
  }
  const Gang& gang = gangs_.at(p.gang);
  const auto& where = gang.spec.where;
  if (where.group) {
    const Group& group = groups_.at(where.group);
    const std::string name = group.row.name.empty() ? to_string(group.row.id) : group.row.name;
    if (group.row.state != actors::GroupState::kCreated) {
      return fmt::format("waits for placement group {} ({})", name, actors::to_string(group.row.state));
    }
    return fmt::format("needs {}; {} of placement group {} {} not that much free", gang.wants[0].to_string(),
                       where.bundle < 0 ? "the bundles" : fmt::format("bundle {}", where.bundle), name, where.bundle < 0 ? "have" : "has");
  }
  const Room could = only(capacity(), where, gang.wants);
  if (could.empty() && !where.labels.empty()) return "no node has the labels " + to_string(where.labels);
  return explain(gang.wants, place(gang.wants, could) ? only(room(), where, gang.wants) : could);
}

Room ClusterState::only(Room room, const std::vector<actors::LabelMatch>& labels) const {
  if (!labels.empty()) std::erase_if(room, [&](const auto& n) { return !matches(nodes_.at(n.first).row.labels, labels); });
  return room;
}

Room ClusterState::only(Room room, const actors::Where& where, const std::vector<Resources>& wants) const {
  room = only(std::move(room), where.labels);
  if (!where.node) return room;
  if (where.soft) {
    const Room could = only(capacity(), where.labels);
    const auto wished = could.find(where.node);
    if (wished == could.end() || !place(wants, {*wished})) return room;
  }
  std::erase_if(room, [&](const auto& n) { return n.first != where.node; });
  return room;
}

Load ClusterState::load() const {
  Load out;
  for (const auto& [id, n] : nodes_) out[id] = n.workers;
  return out;
}

std::optional<std::vector<ClusterState::Site>> ClusterState::place_gang(const Gang& gang) const {
  const auto& where = gang.spec.where;
  if (where.group) return place_in_group(gang, groups_.at(where.group));
  const Room allowed = only(room(), where, gang.wants);
  const auto nodes =
      where.spread ? place(gang.wants, allowed, actors::Strategy::kSpread, load()) : place(gang.wants, allowed, actors::Strategy::kPack);
  if (!nodes) return std::nullopt;
  std::vector<Site> out;
  for (const NodeId n : *nodes) out.push_back({n, -1});
  return out;
}

void ClusterState::place_pending() {
  while (place_pending_once()) {
  }
}

// Whether a group was placed: those that wait for it may stand before it.
bool ClusterState::place_pending_once() {
  std::deque<Pending> rest;
  bool placed_group = false;
  for (auto& p : std::exchange(pending_, {})) {
    if (p.group) {
      if (place_group(groups_.at(p.group))) {
        placed_group = true;
      } else {
        rest.push_back(p);
      }
    } else if (p.gang) {
      Gang& gang = gangs_.at(p.gang);
      if (now_ < p.not_before) {
        rest.push_back(p);
      } else if (const auto sites = place_gang(gang)) {
        start_gang(gang, *sites);
      } else {
        rest.push_back(p);
      }
    } else {
      Job& job = jobs_.at(p.job);
      const auto nodes = place(job.wants, room());
      if (!nodes) {
        rest.push_back(p);
        continue;
      }
      job.placed = *nodes;
      for (std::size_t i = 0; i < nodes->size(); ++i) nodes_.at((*nodes)[i]).row.available -= job.wants[i];
      if (job.row.num_workers > 0) {
        act(FindPortOn{nodes->front(), p.job});
      } else {
        start_job(job);
      }
    }
  }
  for (auto& p : pending_) rest.push_back(p);  // none today: starting makes nothing pending
  pending_ = std::move(rest);
  return placed_group;
}

WorkerId ClusterState::start_worker(const Site& site, GroupId group, actors::StartWorker message, const Resources& held) {
  message.worker = random_.id<WorkerId>();
  const WorkerId id = message.worker;
  auto& w = workers_[id];
  w.row = {id, site.node, message.job, 0, WorkerState::kStarting, message.label, message.rank, {}};
  w.held = held;
  w.group = group;
  w.bundle = site.bundle;
  w.launched = true;
  ++nodes_.at(site.node).workers;
  act(StartWorkerOn{site.node, std::move(message)});
  return id;
}

void ClusterState::start_gang(Gang& gang, const std::vector<Site>& sites) {
  const bool alone = gang.spec.actors.size() == 1;
  const GroupId group = gang.spec.where.group;
  gang.started = now_;
  for (std::size_t i = 0; i < gang.spec.actors.size(); ++i) {
    const auto& spec = gang.spec.actors[i];
    const Site& site = sites[i];
    (group ? groups_.at(group).free.at(static_cast<std::size_t>(site.bundle)) : nodes_.at(site.node).row.available) -= spec.resources;
    auto& row = actors_.at(spec.id);
    row.node = site.node;
    row.state = ActorState::kStarting;
    row.pending_reason.clear();
    row.cause.reset();
    Launch launch = gang.spec.launch;
    if (row.num_restarts > 0) launch.env.emplace_back("SHOAL_RESTARTS", std::to_string(row.num_restarts));
    row.worker = start_worker(
        site, group, {{}, gang.spec.job, std::move(launch), alone ? -1 : static_cast<std::int32_t>(i), spec.class_name}, spec.resources);
    workers_.at(row.worker).actor = spec.id;
    if (gang.spec.detached) jobs_.at(gang.spec.job).driver = row.worker;
  }
}

void ClusterState::start_job(Job& job) {
  for (std::size_t i = 0; i < job.launches.size(); ++i) {
    const bool gang = job.row.num_workers > 0;
    job.processes.push_back(start_worker({job.placed[i], -1}, {},
                                         {{},
                                          job.row.id,
                                          job.launches[i],
                                          gang ? static_cast<std::int32_t>(i) : -1,
                                          gang ? fmt::format("rank {}", i) : std::string("driver")},
                                         job.wants[i]));
  }
  job.running = job.processes.size();
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms_;
  job.row.pending_reason.clear();
  act(PersistJob{job.row});
  act(TellJob{job.row});
}

// ---- jobs
// --------------------------------------------------------------------------------------------------------------------------

JobId ClusterState::driver_joined(const actors::RegisterDriver& driver) {
  if (const auto it = jobs_.find(driver.job); it != jobs_.end() && !ended(it->second.row.state)) return driver.job;
  const auto id = random_.id<JobId>();
  auto& job = jobs_[id];
  job.row.id = id;
  job.row.name = driver.name;
  job.row.driver_pid = driver.pid;
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms_;
  act(PersistJob{job.row});
  return id;
}

void ClusterState::driver_ended(JobId id) {
  const auto it = jobs_.find(id);
  // Of a submitted job the processes' exit decides, not one driver's good-bye.
  if (it == jobs_.end() || ended(it->second.row.state) || !it->second.processes.empty()) return;
  end_job(it->second, JobState::kSucceeded);
}

void ClusterState::driver_gone(JobId id) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || ended(it->second.row.state) || it->second.attached) return;
  it->second.row.exit_code = 128 + SIGKILL;
  it->second.row.cause = unavailable("its driver ended before it had joined a node").with_reason("WorkerDied");
  end_job(it->second, JobState::kFailed);
}

Result<JobId> ClusterState::job_submitted(const actors::JobSpec& spec) {
  const std::size_t count = std::max<std::size_t>(1, spec.num_workers);
  std::vector<Resources> wanted(count, spec.resources);
  if (!spec.wait && !place(wanted, capacity())) return fail(infeasible(explain(wanted, capacity())));
  const auto id = random_.id<JobId>();
  auto& job = jobs_[id];
  job.row.id = id;
  job.row.name = spec.name;
  job.row.num_workers = spec.num_workers;
  job.launches.assign(count, spec.launch);
  job.wants = std::move(wanted);
  pending_.push_back({{}, id, {}, now_});
  act(PersistJob{job.row});
  place_pending();
  return id;
}

void ClusterState::port_found(JobId id, Result<std::uint16_t> port) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end() || ended(it->second.row.state)) return;
  Job& job = it->second;
  if (!port) {
    job.row.cause = port.error();
    job.row.exit_code = 125;
    for (std::size_t i = 0; i < job.placed.size(); ++i) nodes_.at(job.placed[i]).row.available += job.wants[i];
    return end_job(job, JobState::kFailed);
  }
  // Ranks of a node are neighbours, because placement packs.
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

Result<void> ClusterState::job_stopped(JobId id, bool force) {
  const auto it = jobs_.find(id);
  if (it == jobs_.end()) return fail(not_found("no job " + to_string(id)));
  Job& job = it->second;
  if (ended(job.row.state)) return {};
  job.stopping = true;
  if (job.running == 0) {  // still pending, or a driver's
    for (std::size_t i = 0; i < job.placed.size(); ++i) nodes_.at(job.placed[i]).row.available += job.wants[i];
    job.placed.clear();
    if (const auto w = workers_.find(job.driver); w != workers_.end() && w->second.row.state != WorkerState::kExited) {
      act(StopWorkerOn{w->second.row.node, {job.driver, force ? SIGKILL : SIGTERM, options_.stop_grace_ms}});
    }
    end_job(job, JobState::kStopped);
    return {};
  }
  stop_processes(job, force ? SIGKILL : SIGTERM);
  return {};
}

void ClusterState::stop_processes(const Job& job, int signal) {
  for (const WorkerId p : job.processes) {
    const auto w = workers_.find(p);  // one that ended long ago may be forgotten
    if (w == workers_.end() || w->second.row.state == WorkerState::kExited) continue;
    act(StopWorkerOn{w->second.row.node, {p, signal, options_.stop_grace_ms}});
  }
}

void ClusterState::job_process_exited(Job& job, const Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  --job.running;
  if (shell_code != 0 && job.row.exit_code == 0 && !job.row.cause) {  // the first cause counts
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
  job.row.pending_reason.clear();
  const JobId id = job.row.id;
  std::erase_if(pending_, [&](const Pending& p) {
    return p.job == id || (p.gang && gangs_.at(p.gang).spec.job == id) || (p.group && groups_.at(p.group).row.job == id);
  });
  std::erase_if(gangs_, [&](const auto& g) { return g.second.spec.job == id; });
  const Error over = cancelled("its job ended").with_reason("JobEnded");
  for (auto& [actor, row] : actors_) {
    if (row.job == id && row.state != ActorState::kDead) kill_actor_row(row, over);
  }
  std::vector<GroupId> groups;
  for (const auto& [group, g] : groups_) {
    if (g.row.job == id) groups.push_back(group);
  }
  for (const GroupId group : groups) {
    if (const auto it = groups_.find(group); it != groups_.end()) remove_group(it->second, over);
  }
  std::erase_if(hosted_, [&](const auto& h) { return h.first.first == id; });
  for (const NodeId n : alive_nodes()) act(EndJobOn{n, id});
  act(PersistJob{job.row});
  act(TellJob{job.row});
  ended_jobs_.push_back(id);
  place_pending();
  forget_old();
}

// ---- workers
// -----------------------------------------------------------------------------------------------------------------------

Resources& ClusterState::source(const Worker& worker) {
  const auto group = groups_.find(worker.group);
  const auto bundle = static_cast<std::size_t>(worker.bundle);
  // A bundle that is not there any more has given back what was free of it, and this was not.
  const bool reserved = group != groups_.end() && group->second.row.state != actors::GroupState::kRemoved &&
                        group->second.row.nodes.at(bundle) == worker.row.node;
  return reserved ? group->second.free.at(bundle) : nodes_.at(worker.row.node).row.available;
}

void ClusterState::release(Worker& worker) {
  if (worker.launched) --nodes_.at(worker.row.node).workers;
  source(worker) += worker.held;
  worker.held = {};
}

void ClusterState::worker_leaves(WorkerId id) {
  if (const auto it = workers_.find(id); it != workers_.end()) it->second.leaving = true;
}

void ClusterState::worker_blocked(WorkerId id, bool blocked) {
  const auto it = workers_.find(id);
  if (it == workers_.end() || it->second.row.state == WorkerState::kExited || blocked == (it->second.lent > 0)) return;
  Worker& w = it->second;
  Resources cpus;
  cpus.set_units("CPU", blocked ? w.held.units("CPU") : w.lent);
  if (blocked) {
    w.held -= cpus;
    source(w) += cpus;
  } else {
    source(w) -= cpus;
    w.held += cpus;
  }
  w.lent = blocked ? cpus.units("CPU") : 0;
  if (blocked) place_pending();
}

void ClusterState::worker_exited(Worker& worker, std::int32_t shell_code, const std::optional<Error>& cause) {
  worker.row.state = WorkerState::kExited;
  worker.row.cause = cause;
  release(worker);
  ended_workers_.push_back(worker.row.id);
  const WorkerId id = worker.row.id;
  const Error why = cause.value_or(unavailable("its process ended").with_reason("WorkerExited"));
  bool restarts = false;
  for (auto& [actor, row] : actors_) {
    if (row.worker != id || row.state == ActorState::kDead) continue;
    if (restart_actor(row, worker, shell_code, why)) {
      restarts = true;
    } else {
      kill_actor_row(row, why);
    }
  }
  const auto it = jobs_.find(worker.row.job);
  if (it != jobs_.end() && !ended(it->second.row.state)) {
    Job& job = it->second;
    if (std::find(job.processes.begin(), job.processes.end(), id) != job.processes.end()) {
      job_process_exited(job, worker, shell_code, cause);
    } else if (job.driver == id && !restarts) {
      job.row.exit_code = shell_code;
      if (job.detached && shell_code == 0) {
        end_job(job, JobState::kSucceeded);  // it ended itself
      } else {
        job.row.cause = why;
        end_job(job, JobState::kFailed);  // without a good-bye
      }
    }
  }
  place_pending();
  forget_old();
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
