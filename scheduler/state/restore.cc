// The stored records of the cluster state, and its restoration by another head.
#include <algorithm>
#include <map>

#include "scheduler/state/cluster_state.h"
#include "scheduler/state/placing.h"
#include "scheduler/state/queue.h"

namespace shoal::scheduler {

using actors::ActorState;
using actors::GroupState;
using actors::JobState;
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

std::uint64_t id_of(const rows::Node& n) { return n.row.id.value; }
std::uint64_t id_of(const rows::Worker& w) { return w.row.id.value; }
std::uint64_t id_of(const rows::Job& j) { return j.row.id.value; }
std::uint64_t id_of(const rows::Gang& g) { return g.spec.id.value; }
std::uint64_t id_of(const actors::ActorRow& a) { return a.id.value; }
std::uint64_t id_of(const rows::Group& g) { return g.row.id.value; }

template <class Id, class Row>
Result<void> put_back(Table<Id, Row>& table, const Record& record) {
  SHOAL_TRY(auto row, rows::from_record<Row>(record.bytes));
  if (id_of(row) != record.id) return fail(data_loss("the record is that of another row"));
  table.restore(Id{record.id}) = std::move(row);
  return {};
}

template <class Id, class Row>
void mark(Table<Id, Row>& table, std::uint64_t id) {
  table.change_again(Id{id});
}

// Calls `f` for each stored table, in the order of the store.
template <class AnyParts, class F>
void each_table(AnyParts& s, const F& f) {
  f(TableName::kNodes, s.nodes);
  f(TableName::kWorkers, s.workers);
  f(TableName::kJobs, s.jobs);
  f(TableName::kGangs, s.gangs);
  f(TableName::kActors, s.actors);
  f(TableName::kGroups, s.groups);
}

// Computes anew what workers and groups hold of each node, since no record has it.
void restore_holdings(Parts& s) {
  s.nodes.restored(s.turn.now, s.turn.unix_ms);
  for (const auto& [id, group] : s.groups) {
    for (const auto& bundle : s.groups.restored(id)) {
      s.nodes.free(bundle.node) -= bundle.size;
      s.shares.takes(group.row.job, bundle.size);
    }
  }
  s.workers.restored();
  for (const auto& [id, w] : s.workers) {
    if (w.row.state == WorkerState::kExited) continue;
    if (w.launched) s.nodes.add_process(w.row.node);
    source(s, w) -= w.held;
    if (!w.group) s.shares.takes(w.row.job, w.held);
  }
  for (const auto& [id, gang] : s.gangs) {
    const auto lives = [&](const auto& a) { return s.actors.living(a.id) != nullptr; };
    s.gangs.restored(id, static_cast<std::size_t>(std::ranges::count_if(gang.spec.actors, lives)), s.turn.now);
  }
}

// Rebuilds the queue in the order of requests.
void restore_queue(Parts& s) {
  std::map<std::uint64_t, Pending> queue;
  const auto seen = [&](std::uint64_t order) { s.turn.next_order = std::max(s.turn.next_order, order + 1); };
  for (const auto& [id, job] : s.jobs) {
    seen(job.order);
    if (job.row.state == JobState::kPending) queue[job.order] = {{}, id, {}, s.turn.now};
  }
  for (const auto& [id, group] : s.groups) {
    seen(group.order);
    const auto state = group.row.state;
    if (state == GroupState::kPending || state == GroupState::kRescheduling) queue[group.order] = {{}, {}, id, s.turn.now};
  }
  for (const auto& [id, gang] : s.gangs) {
    seen(gang.order);
    const ActorId first = gang.spec.actors.at(0).id;
    const auto row = s.actors.find(first);
    const auto state = row == s.actors.end() ? ActorState::kDead : row->second.state;
    if (state == ActorState::kPending || state == ActorState::kRestarting) queue[gang.order] = {id, {}, {}, s.turn.now};
    if (!gang.spec.name.empty() && s.actors.living(first) != nullptr) s.actors.set_name(gang.spec.name_space, gang.spec.name, first);
  }
  for (const auto& [order, p] : queue) {
    s.queue.add(p.gang ? waiting(s, s.gangs.at(p.gang)) : p.job ? waiting(s, s.jobs.at(p.job)) : p);
  }
}

void restore_jobs(Parts& s) {
  std::map<JobId, std::size_t> running;
  for (const auto& [id, job] : s.jobs) {
    const auto lives = [&](WorkerId p) { return s.workers.living(p) != nullptr; };
    running[id] = static_cast<std::size_t>(std::ranges::count_if(job.processes, lives));
  }
  s.jobs.restored(running, s.turn.now + s.turn.options.node_timeout);
}

void restore_actors(Parts& s) {
  s.actors.restored();
  std::vector<ActorId> incomplete;
  for (const auto& [id, row] : s.actors) {
    if (row.state == ActorState::kDead || s.gangs.contains(row.gang)) continue;
    s.hosted.put_in(row.worker, id);  // an existing process hosts the actor
    if (row.state == ActorState::kPending) incomplete.push_back(id);
  }
  for (const ActorId id : incomplete) s.actors.forget(id);  // its process requests the actor again
}

}  // namespace

bool ClusterState::changed() const {
  bool any = false;
  each_table(parts_, [&](TableName, const auto& table) { any |= table.changed(); });
  return any;
}

std::vector<Record> ClusterState::take_changes() {
  std::vector<Record> out;
  each_table(parts_, [&](TableName name, auto& table) { take(name, table, out); });
  return out;
}

std::vector<Record> ClusterState::all_records() const {
  std::vector<Record> out;
  each_table(parts_, [&](TableName name, const auto& table) { take_all(name, table, out); });
  return out;
}

void ClusterState::change_again(const std::vector<Record>& records) {
  for (const auto& r : records) {
    each_table(parts_, [&](TableName name, auto& table) {
      if (name == r.table) mark(table, r.id);
    });
  }
}

void ClusterState::restore(const std::vector<Record>& records) {
  for (const auto& r : records) {
    Result<void> put;
    each_table(parts_, [&](TableName name, auto& table) {
      if (name == r.table) put = put_back(table, r);
    });
    if (!put) set_aside_.push_back({r.table, r.id, r.name, put.error(), r.bytes.clone()});
  }
  put_stand_ins(parts_, set_aside_);
  restore_holdings(parts_);
  restore_queue(parts_);
  restore_jobs(parts_);
  restore_actors(parts_);
  end_stand_ins(parts_, set_aside_);
  // The next commit writes the stand-ins, or removes rows that have none.
  for (const auto& row : set_aside_) {
    each_table(parts_, [&](TableName name, auto& table) {
      if (name == row.table) mark(table, row.id);
    });
  }
}

}  // namespace shoal::scheduler
