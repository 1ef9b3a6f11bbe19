#include "scheduler/state/tables/worker_table.h"

#include <utility>

namespace shoal::scheduler {

using actors::Resources;
using actors::WorkerState;
using rows::Worker;

const Worker* WorkerTable::living(WorkerId id) const {
  const auto it = find(id);
  return it == end() || it->second.row.state == WorkerState::kExited ? nullptr : &it->second;
}

void WorkerTable::start(const actors::StartWorker& message, const Site& site, GroupId group, const Resources& held) {
  Worker& w = add(message.worker);
  w.row = {message.worker, site.node, message.job, 0, WorkerState::kStarting, message.label, message.rank, {}};
  w.held = held;
  w.group = group;
  w.bundle = site.bundle;
  w.launched = true;
}

void WorkerTable::attach(NodeId node, const actors::WorkerUpdate& update) {
  add(update.worker).row = {update.worker, node, update.job, update.pid, WorkerState::kStarting, update.role, -1, {}};
}

void WorkerTable::report(WorkerId id, std::int32_t pid) {
  scratch(id).reported = true;
  if (pid != 0 && pid != at(id).row.pid) edit(id).row.pid = pid;
}

void WorkerTable::set_state(WorkerId id, WorkerState state) {
  if (state != at(id).row.state) edit(id).row.state = state;
}

void WorkerTable::announce_end(WorkerId id) {
  if (contains(id)) edit(id).leaving = true;
}

Resources WorkerTable::lend(WorkerId id) {
  Worker& w = scratch(id);
  Resources cpus;
  cpus.set_units("CPU", w.held.units("CPU"));
  w.held -= cpus;
  w.lent = cpus.units("CPU");
  return cpus;
}

Resources WorkerTable::take_back(WorkerId id) {
  Worker& w = scratch(id);
  Resources cpus;
  cpus.set_units("CPU", std::exchange(w.lent, 0));
  w.held += cpus;
  return cpus;
}

Resources WorkerTable::exit(WorkerId id, const std::optional<Error>& cause) {
  Worker& w = edit(id);
  w.row.state = WorkerState::kExited;
  w.row.cause = cause;
  w.lent = 0;
  ended_.push_back(id);
  return std::exchange(w.held, {});
}

void WorkerTable::expect_reports(NodeId node) {
  for (const auto& [id, w] : *this) {
    if (w.row.node == node) scratch(id).reported = false;
  }
}

std::vector<WorkerId> WorkerTable::unreported(NodeId node) const {
  std::vector<WorkerId> out;
  for (const auto& [id, w] : *this) {
    if (w.row.node == node && !w.reported && w.row.state != WorkerState::kExited) out.push_back(id);
  }
  return out;
}

void WorkerTable::restored() {
  for (const auto& [id, w] : *this) {
    if (w.row.state == WorkerState::kExited) ended_.push_back(id);
  }
}

void WorkerTable::forget_old(std::size_t max) {
  for (; ended_.size() > max; ended_.pop_front()) erase(ended_.front());
}

}  // namespace shoal::scheduler
