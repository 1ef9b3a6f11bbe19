// The stored records of the cluster state, and its restoration by another head.
#include <algorithm>

#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::GroupState;
using actors::JobState;
using actors::NodeState;
using actors::WorkerState;

namespace {

std::string name_of(const rows::Node& n) { return n.row.host; }
std::string name_of(const rows::Worker& w) { return w.row.role; }
std::string name_of(const rows::Job& j) { return j.row.name; }
std::string name_of(const rows::Gang& g) { return g.spec.actors.empty() ? "" : g.spec.actors[0].class_name; }
std::string name_of(const actors::ActorRow& a) { return a.name.empty() ? a.class_name : a.name; }
std::string name_of(const rows::Group& g) { return g.row.name; }

std::string state_of(const rows::Node& n) { return actors::to_string(n.row.state); }
std::string state_of(const rows::Worker& w) { return actors::to_string(w.row.state); }
std::string state_of(const rows::Job& j) { return actors::to_string(j.row.state); }
std::string state_of(const rows::Gang&) { return ""; }
std::string state_of(const actors::ActorRow& a) { return actors::to_string(a.state); }
std::string state_of(const rows::Group& g) { return actors::to_string(g.row.state); }

template <class Id, class Row>
Record record_of(TableName name, Id id, const Row& row) {
  return {name, id.value, name_of(row), state_of(row), rows::to_record(row)};
}

template <class Id, class Row>
void take(TableName name, Table<Id, Row>& table, std::vector<Record>& out) {
  if (!table.changed()) return;
  for (const Id id : table.take_changed()) {
    const auto it = table.find(id);
    if (it == table.end()) {
      out.push_back({name, id.value, {}, {}, {}});
    } else {
      out.push_back(record_of(name, id, it->second));
    }
  }
}

template <class Id, class Row>
void take_all(TableName name, const Table<Id, Row>& table, std::vector<Record>& out) {
  for (const auto& [id, row] : table) out.push_back(record_of(name, id, row));
}

template <class Id, class Row>
Result<void> put_back(Table<Id, Row>& table, const Record& record) {
  SHOAL_TRY(table.restore(Id{record.id}), rows::from_record<Row>(record.bytes));
  return {};
}

Result<void> known(bool is, const char* what) {
  if (is) return {};
  return fail(data_loss(std::string("the head's state does not fit together: ") + what));
}

}  // namespace

bool ClusterState::changed() const {
  return nodes_.changed() || workers_.changed() || jobs_.changed() || gangs_.changed() || actors_.changed() || groups_.changed();
}

std::vector<Record> ClusterState::take_changes() {
  std::vector<Record> out;
  take(TableName::kNodes, nodes_, out);
  take(TableName::kWorkers, workers_, out);
  take(TableName::kJobs, jobs_, out);
  take(TableName::kGangs, gangs_, out);
  take(TableName::kActors, actors_, out);
  take(TableName::kGroups, groups_, out);
  return out;
}

std::vector<Record> ClusterState::all_records() const {
  std::vector<Record> out;
  take_all(TableName::kNodes, nodes_, out);
  take_all(TableName::kWorkers, workers_, out);
  take_all(TableName::kJobs, jobs_, out);
  take_all(TableName::kGangs, gangs_, out);
  take_all(TableName::kActors, actors_, out);
  take_all(TableName::kGroups, groups_, out);
  return out;
}

void ClusterState::change_again(const std::vector<Record>& records) {
  for (const auto& r : records) {
    switch (r.table) {
      case TableName::kNodes:
        nodes_.change_again({r.id});
        break;
      case TableName::kWorkers:
        workers_.change_again({r.id});
        break;
      case TableName::kJobs:
        jobs_.change_again({r.id});
        break;
      case TableName::kGangs:
        gangs_.change_again({r.id});
        break;
      case TableName::kActors:
        actors_.change_again({r.id});
        break;
      case TableName::kGroups:
        groups_.change_again({r.id});
        break;
    }
  }
}

Result<void> ClusterState::restore(const std::vector<Record>& records) {
  const auto put = [this](const Record& r) -> Result<void> {
    switch (r.table) {
      case TableName::kNodes:
        return put_back(nodes_, r);
      case TableName::kWorkers:
        return put_back(workers_, r);
      case TableName::kJobs:
        return put_back(jobs_, r);
      case TableName::kGangs:
        return put_back(gangs_, r);
      case TableName::kActors:
        return put_back(actors_, r);
      case TableName::kGroups:
        return put_back(groups_, r);
    }
    return fail(data_loss("a record of an unknown table"));
  };
  for (const auto& r : records) SHOAL_OK(put(r));
  SHOAL_OK(restore_holdings());
  restore_pending();
  restore_ended();
  return {};
}

// Derives what workers and groups hold of each node.
Result<void> ClusterState::restore_holdings() {
  for (const auto& [id, node] : nodes_) {
    Node& n = nodes_.scratch(id);
    n.row.available = n.row.total;
    n.last_beat = now_;
    n.away = n.row.state == NodeState::kAlive;
    // The wall clock is the only one that two heads share.
    n.drain_until = now_ + std::chrono::milliseconds(std::max<std::int64_t>(0, n.row.drain_until_unix_ms - unix_ms_));
  }
  for (const auto& [id, group] : groups_) {
    Group& g = groups_.scratch(id);
    g.free.resize(g.row.bundles.size());
    if (g.row.state == GroupState::kRemoved) continue;
    for (std::size_t i = 0; i < g.row.nodes.size(); ++i) {
      if (!g.row.nodes[i]) continue;
      SHOAL_OK(known(nodes_.contains(g.row.nodes[i]), "a bundle on an unknown node"));
      nodes_.scratch(g.row.nodes[i]).row.available -= g.row.bundles[i];
      g.free[i] = g.row.bundles[i];
      shares_.takes(g.row.job, g.row.bundles[i]);
    }
  }
  for (const auto& [id, w] : workers_) {
    if (w.row.state == WorkerState::kExited) continue;
    SHOAL_OK(known(nodes_.contains(w.row.node), "a worker on an unknown node"));
    const auto group = groups_.find(w.group);
    SHOAL_OK(known(!w.group || group == groups_.end() || (w.bundle >= 0 && w.bundle < static_cast<int>(group->second.row.bundles.size())),
                   "a worker in an unknown bundle"));
    nodes_.scratch(w.row.node).workers += w.launched;
    source(w) -= w.held;
    if (!w.group) shares_.takes(w.row.job, w.held);
  }
  for (const auto& [id, gang] : gangs_) {
    Gang& g = gangs_.scratch(id);
    for (const auto& a : g.spec.actors) {
      g.wants.push_back(a.resources);
      const auto row = actors_.find(a.id);
      g.living += row != actors_.end() && row->second.state != ActorState::kDead;
    }
    g.started = now_;
    if (g.spec.creator) made_by_[g.spec.creator].insert(id);
  }
  return {};
}

// Rebuilds the queue in the order of requests.
void ClusterState::restore_pending() {
  std::map<std::uint64_t, Pending> queue;
  for (const auto& [id, job] : jobs_) {
    next_order_ = std::max(next_order_, job.order + 1);
    if (job.row.state == JobState::kPending) queue[job.order] = {{}, id, {}, now_};
    for (const WorkerId p : job.processes) {
      const auto w = workers_.find(p);
      jobs_.scratch(id).running += w != workers_.end() && w->second.row.state != WorkerState::kExited;
    }
    const bool driven = job.processes.empty() && job.row.state == JobState::kRunning;
    if (driven && !job.attached && !job.detached) unattached_.emplace(id, now_ + options_.node_timeout);
  }
  for (const auto& [id, group] : groups_) {
    next_order_ = std::max(next_order_, group.order + 1);
    if (group.row.state == GroupState::kPending || group.row.state == GroupState::kRescheduling) queue[group.order] = {{}, {}, id, now_};
    if (group.row.state != GroupState::kRemoved && !group.row.name.empty()) group_names_[{group.row.name_space, group.row.name}] = id;
  }
  for (const auto& [id, gang] : gangs_) {
    next_order_ = std::max(next_order_, gang.order + 1);
    const ActorId first = gang.spec.actors.at(0).id;
    const auto row = actors_.find(first);
    const auto state = row == actors_.end() ? ActorState::kDead : row->second.state;
    if (state == ActorState::kPending || state == ActorState::kRestarting) queue[gang.order] = {id, {}, {}, now_};
    if (!gang.spec.name.empty()) names_[{gang.spec.name_space, gang.spec.name}] = first;
  }
  for (const auto& [order, p] : queue) pending_.push_back(p.gang ? waiting(gangs_.at(p.gang)) : p);
}

void ClusterState::restore_ended() {
  std::multimap<std::uint64_t, JobId> jobs;
  for (const auto& [id, job] : jobs_) {
    if (ended(job.row.state)) jobs.emplace(job.order, id);
  }
  for (const auto& [when, id] : jobs) ended_jobs_.push_back(id);
  for (const auto& [id, w] : workers_) {
    if (w.row.state == WorkerState::kExited) ended_workers_.push_back(id);
  }
  for (const auto& [id, group] : groups_) {
    if (group.row.state == GroupState::kRemoved) removed_groups_.push_back(id);
  }
  std::vector<ActorId> incomplete;
  for (const auto& [id, row] : actors_) {
    if (row.state == ActorState::kDead) {
      ended_actors_.push_back(id);
    } else if (!gangs_.contains(row.gang)) {  // hosted by a running process
      hosted_in_[row.worker].push_back(id);
      if (row.state == ActorState::kPending) incomplete.push_back(id);
    }
  }
  for (const ActorId id : incomplete) actors_.erase(id);  // requested again by its process
}

}  // namespace shoal::scheduler
