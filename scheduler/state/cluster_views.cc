// Read-only views of the cluster state: rows, sums and invariants.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "actors/protocol/cluster/row_bounds.h"
#include "runtime/core/check.h"
#include "runtime/core/utf8.h"
#include "scheduler/state/bounds.h"
#include "scheduler/state/cluster_state.h"
#include "scheduler/state/explain.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;
using actors::JobState;
using actors::NodeState;
using actors::Resources;
using actors::WorkerState;

namespace {

// Shortens a cause, which may carry kilobytes of a process's last output.
std::optional<Error> brief(const std::optional<Error>& cause, std::size_t max_text) {
  if (!cause) return {};
  const auto cut = [max_text](const std::string& text) {
    return std::string(utf8_prefix(std::string_view(text).substr(0, text.find('\n')), max_text));
  };
  Error out = Error(cause->code(), cut(cause->message())).with_reason(cut(cause->reason())).with_hint(cut(cause->hint()));
  for (const auto& frame : cause->context()) {
    if (out.context().size() < 8) out = std::move(out).in(cut(frame));
  }
  return out;
}

// The names that a sum over nodes leaves out, so that it fits a message. A name of one node's own ("node:HOST") is left out first.
std::vector<std::string> beyond_bound(const Resources& sums) {
  std::vector<std::string> shared, own;
  for (const auto& [name, units] : sums.all()) (name.starts_with("node:") ? own : shared).push_back(name);
  shared.insert(shared.end(), own.begin(), own.end());
  shared.erase(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(std::min(shared.size(), actors::RowBounds::kMaxResources)));
  return shared;
}

}  // namespace

actors::ListReply ClusterState::list(const actors::ListRequest& request) const {
  using What = actors::ListRequest::What;
  const auto& options = parts_.turn.options;
  actors::ListReply out;
  std::size_t bytes = 0;
  // The first row goes into the page whatever its size, which is bounded (bounds.h).
  const auto page = [&](const auto& table, auto& rows, const auto& row_of, const auto& job_of) {
    for (auto it = table.upper_bound({request.after}); it != table.end(); ++it) {
      if (request.job && request.job != job_of(it->second)) continue;
      auto row = row_of(it->second);
      if constexpr (requires { row.cause; }) row.cause = brief(row.cause, options.max_listed_text);
      bytes += row_bytes(row);
      if (!rows.empty() && (rows.size() == options.max_listed_rows || bytes > options.max_listed_bytes)) {
        out.last = rows.back().id.value;
        return;
      }
      rows.push_back(std::move(row));
    }
  };
  const auto whole = [](const auto& entry) { return entry.row; };
  switch (request.what) {
    case What::kActors:
      page(parts_.actors, out.actors, [](const ActorRow& row) { return row; }, [](const ActorRow& row) { return row.job; });
      break;
    case What::kNodes:
      page(parts_.nodes, out.nodes, whole, [&](const rows::Node&) { return request.job; });
      break;
    case What::kWorkers:
      page(parts_.workers, out.workers, whole, [](const rows::Worker& w) { return w.row.job; });
      break;
    case What::kJobs:
      page(parts_.jobs, out.jobs, whole, [](const rows::Job& j) { return j.row.id; });
      break;
    case What::kGroups:
      page(parts_.groups, out.groups, whole, [](const rows::Group& g) { return g.row.job; });
      break;
  }
  return out;
}

actors::ClusterStatus ClusterState::resources(JobId requester) const {
  actors::ClusterStatus out;
  ResourceSums total, available;
  for (const auto& [id, n] : parts_.nodes) {
    if (n.row.state != NodeState::kAlive) continue;
    ++out.num_nodes;
    total += n.row.total;
    available += n.row.available;
  }
  out.total = cut(total, total);
  out.available = cut(available, total);
  for (const auto& name : beyond_bound(out.total)) {
    out.total.set_units(name, 0);
    out.available.set_units(name, 0);
    ++out.resources_left_out;
  }
  out.wanted_back = requester && wanted_back(requester);
  return out;
}

actors::ClusterStatus ClusterState::status() const {
  actors::ClusterStatus out = resources({});
  for (const auto& [id, w] : parts_.workers) out.num_workers += w.row.state != WorkerState::kExited;
  for (const auto& [id, a] : parts_.actors) out.num_actors += a.state != ActorState::kDead && !actors::is_function_worker(a);
  for (const auto& [id, j] : parts_.jobs) out.num_jobs += j.row.state == JobState::kRunning;
  out.num_pending = static_cast<std::uint32_t>(parts_.queue.size());
  out.pending = summed_reasons(parts_);
  out.num_set_aside = static_cast<std::uint32_t>(set_aside_.size());
  for (const auto& row : set_aside_) {
    if (out.set_aside.size() == parts_.turn.options.max_status_lines) break;
    out.set_aside.push_back(std::string(utf8_prefix(to_string(row), parts_.turn.options.max_status_text)));
  }
  return out;
}

std::vector<actors::MetricFamily> ClusterState::metrics() const {
  using actors::FamilyOf;
  using actors::MetricKind;
  std::vector<actors::MetricFamily> out;
  // A state without rows has a sample, too, so that its curve in Prometheus begins at 0.
  const auto by_state = [&](const char* name, const char* help, const auto& table, const auto& state_of, auto... states) {
    std::map<std::string, double> counts = {{states, 0}...};
    for (const auto& [id, row] : table) ++counts[state_of(row)];
    FamilyOf family(MetricKind::kGauge, name, help);
    for (const auto& [state, count] : counts) family.add(count, {{"state", state}});
    out.push_back(family);
  };
  by_state(
      "shoal_nodes", "Nodes; of those that are gone as many as are still listed.", parts_.nodes,
      [](const rows::Node& n) { return state_text(n.row); }, "ALIVE", "CORDONED", "DEAD", "DRAINING");
  by_state(
      "shoal_actors", "Actors; of those that are gone as many as are still listed.", parts_.actors,
      [](const ActorRow& a) { return to_string(a.state); }, "PENDING", "STARTING", "ALIVE", "DEAD", "RESTARTING");
  by_state(
      "shoal_workers", "Processes of jobs; of those that are gone as many as are still listed.", parts_.workers,
      [](const rows::Worker& w) { return to_string(w.row.state); }, "STARTING", "RUNNING", "EXITED", "STOPPED");
  by_state(
      "shoal_jobs", "Jobs; of those that are over as many as are still listed.", parts_.jobs,
      [](const rows::Job& j) { return to_string(j.row.state); }, "PENDING", "RUNNING", "SUCCEEDED", "FAILED", "STOPPED");
  by_state(
      "shoal_placement_groups", "Placement groups; of those that are removed as many as are still listed.", parts_.groups,
      [](const rows::Group& g) { return to_string(g.row.state); }, "PENDING", "CREATED", "RESCHEDULING", "REMOVED");
  out.push_back(
      FamilyOf(MetricKind::kGauge, "shoal_pending_demands", "Actors (gangs as one), jobs and placement groups that wait for room.")
          .add(static_cast<double>(parts_.queue.size())));
  FamilyOf total(MetricKind::kGauge, "shoal_resources", "What a node offers; memory in bytes.");
  FamilyOf used(MetricKind::kGauge, "shoal_resources_used", "What of it is taken by actors, tasks, jobs and placement groups.");
  for (const auto& [id, n] : parts_.nodes) {
    if (n.row.state != NodeState::kAlive) continue;
    const auto amount = [](std::int64_t units) { return static_cast<double>(units) / actors::Resources::kUnit; };
    for (const auto& [name, units] : n.row.total.all()) {
      const actors::MetricSample::Labels labels = {{"host", n.row.host}, {"node", to_string(id)}, {"resource", name}};
      total.add(amount(units), labels);
      used.add(amount(units - n.row.available.units(name)), labels);
    }
  }
  out.push_back(total);
  out.push_back(used);
  return out;
}

const ActorRow* ClusterState::actor(ActorId id) const {
  const auto it = parts_.actors.find(id);
  return it == parts_.actors.end() ? nullptr : &it->second;
}

Result<actors::FoundActor> ClusterState::creation_spec(WorkerId worker) const {
  const auto w = parts_.workers.find(worker);
  const auto a = w == parts_.workers.end() ? parts_.actors.end() : parts_.actors.find(w->second.actor);
  const auto g = a == parts_.actors.end() ? parts_.gangs.end() : parts_.gangs.find(a->second.gang);
  if (g == parts_.gangs.end()) return fail(not_found("no actor is assigned to worker " + to_string(worker)));
  return actors::FoundActor{a->second, g->second.spec.creation_spec};
}

bool ClusterState::wanted_back(JobId job) const { return scheduler::wanted_back(parts_, job); }

const actors::JobRow* ClusterState::job(JobId id) const {
  const auto it = parts_.jobs.find(id);
  return it == parts_.jobs.end() ? nullptr : &it->second.row;
}

const actors::GroupRow* ClusterState::group(GroupId id) const {
  const auto it = parts_.groups.find(id);
  return it == parts_.groups.end() ? nullptr : &it->second.row;
}

Result<actors::GroupRow> ClusterState::find_group(const actors::FindActor& request) const {
  if (const auto* const group = parts_.groups.named(request.name_space, request.name)) return group->row;
  return fail(not_found(fmt::format("no placement group is named '{}' in namespace '{}'", request.name, request.name_space))
                  .with_reason("NoSuchName"));
}

const actors::NodeRow* ClusterState::node(NodeId id) const {
  const auto it = parts_.nodes.find(id);
  return it == parts_.nodes.end() ? nullptr : &it->second.row;
}

std::vector<NodeId> ClusterState::alive_nodes() const {
  std::vector<NodeId> out;
  for (const auto& [id, n] : parts_.nodes) {
    if (n.row.state == NodeState::kAlive) out.push_back(id);
  }
  return out;
}

std::set<NodeId> ClusterState::nodes_of(JobId job) const {
  const auto it = parts_.jobs.find(job);
  return it == parts_.jobs.end() ? std::set<NodeId>() : it->second.nodes;
}

void ClusterState::check_invariants() const {
  NodeResources taken;
  Shares shares;
  for (const auto& [id, w] : parts_.workers) {
    if (!w.group && !w.held.empty()) shares.takes(w.row.job, w.held);
    if (w.row.state == WorkerState::kExited) SHOAL_CHECK(w.held.empty(), "an exited worker holds resources");
    taken[w.row.node] += w.held;
  }
  for (const auto& [id, j] : parts_.jobs) {  // placed jobs that still wait for their port
    if (!j.processes.empty() || ended(j.row.state)) continue;
    for (std::size_t i = 0; i < j.placed.size(); ++i) taken[j.placed[i]] += j.wants[i];
  }
  for (const auto& [id, g] : parts_.groups) {
    if (g.row.state == actors::GroupState::kRemoved) continue;
    for (std::size_t i = 0; i < g.free.size(); ++i) {
      if (g.row.nodes[i]) taken[g.row.nodes[i]] += g.free[i];
      if (g.row.nodes[i]) shares.takes(g.row.job, g.row.bundles[i]);
      if (!g.row.nodes[i]) SHOAL_CHECK(g.free[i].empty(), "a bundle without a node has free resources");
    }
  }
  const auto held = [](std::map<JobId, ResourceSums> by_job) {
    std::erase_if(by_job, [](const auto& job) { return job.second.empty(); });
    return by_job;
  };
  SHOAL_CHECK(held(parts_.shares.held()) == held(shares.held()), "the jobs' shares do not add up");
  for (const auto& [id, n] : parts_.nodes) {
    Resources sum = n.row.available;
    sum += taken[id];
    SHOAL_CHECK(sum == n.row.total, "a node's resources do not add up");
    for (const auto& [name, units] : n.row.available.all()) {
      // CPUs may go below 0: lent ones are taken back while another process uses them.
      SHOAL_CHECK(units >= 0 || name == "CPU", "a node gave more than it has");
    }
  }
  ResourceSums all;
  for (const auto& [id, total] : parts_.nodes.index().capacity()) all += total;
  SHOAL_CHECK(all == parts_.nodes.index().all(), "the resources of all nodes do not add up");
  for (const auto& [id, a] : parts_.actors) {
    if (a.state == ActorState::kAlive)
      SHOAL_CHECK(parts_.workers.at(a.worker).row.state != WorkerState::kExited, "an actor lives in a dead process");
  }
  std::map<WorkerId, std::set<GangId>> by_creator;
  for (const auto& [id, g] : parts_.gangs) {
    if (!g.spec.creator) continue;
    by_creator[g.spec.creator].insert(id);
    const auto w = parts_.workers.find(g.spec.creator);
    SHOAL_CHECK(w != parts_.workers.end() && w->second.row.state != WorkerState::kExited, "an actor lives without its creator");
  }
  SHOAL_CHECK(by_creator == parts_.gangs.by_creator(), "the actors by creator do not add up");
  for (const auto& [name, who] : parts_.actors.names()) {
    const auto a = parts_.actors.find(who);
    SHOAL_CHECK(a != parts_.actors.end() && a->second.state != ActorState::kDead, "a name stands for an actor that is gone");
  }
  for (const auto& p : parts_.queue.entries()) {
    SHOAL_CHECK(p.group  ? parts_.groups.contains(p.group)
                : p.gang ? parts_.gangs.contains(p.gang)
                         : parts_.jobs.contains(p.job),
                "a pending entry has no gang, group or job");
  }
  SHOAL_CHECK(parts_.queue.adds_up(), "the queue's counters do not fit its entries");
}

std::set<std::string> ClusterState::mentioned(const std::set<std::string>& packages) const {
  constexpr std::size_t kDigits = 64;  // digits of a package's name
  std::set<std::string> out;
  const auto search = [&](const actors::Launch& launch) {
    for (const auto& [name, text] : launch.env) {
      std::size_t digits = 0;  // length of the run of digits up to `end`
      for (std::size_t end = 1; end <= text.size(); ++end) {
        digits = std::isxdigit(static_cast<unsigned char>(text[end - 1])) ? digits + 1 : 0;
        if (digits < kDigits) continue;
        if (const auto it = packages.find(text.substr(end - kDigits, kDigits)); it != packages.end()) out.insert(*it);
      }
    }
  };
  for (const auto& [id, gang] : parts_.gangs) search(gang.spec.launch);
  for (const auto& [id, job] : parts_.jobs) {
    if (!ended(job.row.state)) search(job.launch);
  }
  return out;
}

}  // namespace shoal::scheduler
