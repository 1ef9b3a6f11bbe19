#include "scheduler/state/tables/job_table.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace shoal::scheduler {

using actors::JobState;
using actors::Launch;
using rows::Job;

namespace {

// The environment variables that torchrun sets.
void add_rank_env(Launch& launch, const RankPlace& place, const std::string& address, std::uint16_t port, JobId job) {
  const auto set = [&](const char* name, const std::string& value) { launch.env.emplace_back(name, value); };
  const auto number = [](std::int32_t n) { return std::to_string(n); };
  set("RANK", number(place.rank));
  set("WORLD_SIZE", number(place.world_size));
  set("LOCAL_RANK", number(place.local_rank));
  set("LOCAL_WORLD_SIZE", number(place.local_world_size));
  set("GROUP_RANK", number(place.node_rank));
  set("GROUP_WORLD_SIZE", number(place.num_nodes));
  set("ROLE_NAME", "default");
  set("ROLE_RANK", number(place.rank));
  set("ROLE_WORLD_SIZE", number(place.world_size));
  set("MASTER_ADDR", address);
  set("MASTER_PORT", std::to_string(port));
  set("TORCHELASTIC_RESTART_COUNT", "0");
  set("TORCHELASTIC_MAX_RESTARTS", "0");
  set("TORCHELASTIC_RUN_ID", to_string(job));
}

}  // namespace

const Job* JobTable::living(JobId id) const {
  const auto it = find(id);
  return it == end() || ended(it->second.row.state) ? nullptr : &it->second;
}

bool JobTable::has_submission(const std::string& id) const {
  return std::any_of(begin(), end(), [&](const auto& j) {
    return j.second.row.submission.id == id || to_string(j.first) == id;  // a submission id and a job id name the same job
  });
}

void JobTable::add_driver(JobId id, const actors::RegisterDriver& driver, std::int64_t unix_ms) {
  Job& job = add(id);
  job.row.id = id;
  job.row.name = driver.name;
  job.row.driver_pid = driver.pid;
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms;
}

void JobTable::add_detached(JobId id, const std::string& name, std::int64_t unix_ms) {
  Job& job = add(id);
  job.row.id = id;
  job.row.name = name;
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms;
  job.detached = true;
}

void JobTable::add_submitted(JobId id, const actors::JobSpec& spec, const std::vector<actors::Resources>& wants, std::uint64_t order) {
  Job& job = add(id);
  job.order = order;
  job.row.id = id;
  job.row.name = spec.name;
  job.row.num_workers = spec.num_workers;
  job.row.submission = spec.submission;
  if (job.row.submission.id.empty()) job.row.submission.id = to_string(id);
  job.launch = spec.launch;
  job.wants = wants;
}

void JobTable::attach(JobId id, NodeId node, const actors::WorkerUpdate& process) {
  Job& job = edit(id);
  job.attached = true;
  job.nodes.insert(node);
  // The head had started this process and has lost its row, so it counts as running again.
  if (std::ranges::count(job.processes, process.worker) > 0) ++job.running;
  if (!job.driver && process.role == "driver") {
    job.driver = process.worker;
    job.row.driver_pid = process.pid;
  }
}

void JobTable::reach(JobId id, NodeId node) {
  if (contains(id) && !at(id).nodes.contains(node)) edit(id).nodes.insert(node);
}

void JobTable::set_meeting(JobId id, const std::string& address, std::uint16_t port) {
  Job& job = edit(id);
  job.address = address;
  job.port = port;
}

void JobTable::start(JobId id, const std::vector<WorkerId>& processes, std::int64_t unix_ms) {
  Job& job = edit(id);
  job.processes = processes;
  job.running = processes.size();
  job.row.state = JobState::kRunning;
  job.row.started_unix_ms = unix_ms;
  job.row.pending_reason.clear();
}

bool JobTable::process_exited(JobId id, const rows::Worker& process, std::int32_t shell_code, const std::optional<Error>& cause) {
  Job& job = edit(id);
  --job.running;
  if (shell_code == 0 || job.row.exit_code != 0 || job.row.cause) return false;
  job.row.exit_code = shell_code;
  if (cause) job.row.cause = process.row.rank >= 0 ? Error(*cause).in(process.row.role) : *cause;
  return true;
}

void JobTable::set_outcome(JobId id, std::int32_t exit_code, const std::optional<Error>& cause) {
  Job& job = edit(id);
  job.row.exit_code = exit_code;
  if (cause) job.row.cause = cause;
}

void JobTable::finish(JobId id, JobState state, std::int64_t unix_ms, std::uint64_t order) {
  Job& job = edit(id);
  job.row.state = state;
  job.row.ended_unix_ms = unix_ms;
  job.order = order;  // from now on, the job's place in the order of ends, which no clock decides
  job.row.pending_reason.clear();
}

void JobTable::explain(JobId id, const std::string& why) {
  if (at(id).row.pending_reason != why) edit(id).row.pending_reason = why;
}

void JobTable::forget_old(std::size_t max) {
  for (; ended_.size() > max; ended_.pop_front()) erase(ended_.front());
}

void JobTable::restored(const std::map<JobId, std::size_t>& running, runtime::TimePoint deadline) {
  std::multimap<std::uint64_t, JobId> over;
  for (const auto& [id, job] : *this) {
    if (const auto it = running.find(id); it != running.end()) scratch(id).running = it->second;
    const bool driven = job.processes.empty() && job.row.state == JobState::kRunning;
    if (driven && !job.attached && !job.detached) unattached_.emplace(id, deadline);
    if (ended(job.row.state)) over.emplace(job.order, id);
  }
  for (const auto& [order, id] : over) ended_.push_back(id);
}

void JobTable::put_off_deadlines(runtime::Duration by) {
  for (auto& [id, deadline] : unattached_) deadline += by;
}

std::optional<JobId> JobTable::take_unattached(runtime::TimePoint now) {
  if (unattached_.empty() || unattached_.begin()->second > now) return std::nullopt;
  return unattached_.extract(unattached_.begin()).key();
}

std::vector<RankPlace> rank_places(const Job& job) {
  struct Node {
    std::int32_t rank, num_ranks;
  };
  std::map<NodeId, Node> nodes;  // node ranks follow the order of the nodes' first ranks
  std::vector<RankPlace> out;
  for (const NodeId id : job.placed) {
    Node& node = nodes.try_emplace(id, Node{static_cast<std::int32_t>(nodes.size()), 0}).first->second;
    out.push_back({.rank = static_cast<std::int32_t>(out.size()), .local_rank = node.num_ranks++, .node_rank = node.rank});
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i].world_size = static_cast<std::int32_t>(out.size());
    out[i].local_world_size = nodes.at(job.placed[i]).num_ranks;
    out[i].num_nodes = static_cast<std::int32_t>(nodes.size());
  }
  return out;
}

Launch rank_launch(const Job& job, const RankPlace& place) {
  Launch out = job.launch;
  if (job.row.num_workers != 0) add_rank_env(out, place, job.address, job.port, job.row.id);
  return out;
}

void take_meeting_from_launch(Job& job) {
  auto& env = job.launch.env;
  if (job.row.num_workers == 0 || env.empty() ||
      env.back() != std::pair<std::string, std::string>("TORCHELASTIC_RUN_ID", to_string(job.row.id)))
    return;
  Launch ranks;
  add_rank_env(ranks, {}, "", 0, job.row.id);
  if (env.size() < ranks.env.size()) return;
  const auto first = env.end() - static_cast<std::ptrdiff_t>(ranks.env.size());
  const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
  if (!std::equal(first, env.end(), ranks.env.begin(), same_name)) return;
  for (auto it = first; it != env.end(); ++it) {
    if (it->first == "MASTER_ADDR") job.address = it->second;
    if (it->first == "MASTER_PORT") job.port = static_cast<std::uint16_t>(std::strtoul(it->second.c_str(), nullptr, 10));
  }
  env.erase(first, env.end());
}

}  // namespace shoal::scheduler
