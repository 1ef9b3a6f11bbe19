#include "scheduler/state/tables/actor_table.h"

#include <fmt/format.h>

#include "actors/protocol/cluster/row_bounds.h"
#include "runtime/core/utf8.h"

namespace shoal::scheduler {

using actors::ActorRow;
using actors::ActorState;

namespace {

Error actor_died(const ActorRow& row, const Error& cause) {
  const char* const end = cause.reason() == "JobEnded" ? "is gone: "
                          : cause.reason() == "Killed" ? "died. The actor is dead because "  // the text that Ray has
                                                       : "died: ";
  Error e = unavailable(fmt::format("actor {} {}", row.class_name, end))
                .because(cause)
                .with_reason(cause.reason() == "Unschedulable" || cause.reason() == actors::kOutOfMemory ? cause.reason() : "ActorDied")
                .with_hint(cause.hint());
  for (const auto& frame : cause.context()) e = std::move(e).in(frame);
  return std::move(e).in(fmt::format("actor {}({})", row.class_name, to_string(row.id)));
}

}  // namespace

bool may_restart(const ActorRow& row) { return row.max_restarts < 0 || row.num_restarts < static_cast<std::uint32_t>(row.max_restarts); }

const ActorRow* ActorTable::living(ActorId id) const {
  const auto it = find(id);
  return it == end() || it->second.state == ActorState::kDead ? nullptr : &it->second;
}

const ActorRow* ActorTable::named(const std::string& name_space, const std::string& name) const {
  const auto it = names_.find({name_space, name});
  return it == names_.end() ? nullptr : &at(it->second);
}

void ActorTable::request(const actors::GangSpec& spec, JobId job) {
  if (!spec.name.empty()) set_name(spec.name_space, spec.name, spec.actors[0].id);
  for (std::size_t i = 0; i < spec.actors.size(); ++i) {
    ActorRow row;
    row.id = spec.actors[i].id;
    row.class_name = spec.actors[i].class_name;
    row.job = job;
    row.gang = spec.id;
    row.name = spec.name;
    row.name_space = spec.name_space;
    row.detached = spec.detached;
    row.max_restarts = spec.max_restarts;
    row.max_task_retries = spec.max_task_retries;
    row.rank = static_cast<std::int32_t>(i);
    row.world_size = static_cast<std::int32_t>(spec.actors.size());
    add(row.id) = std::move(row);
  }
}

void ActorTable::host(const actors::HostActor& request, const rows::Worker& process, GangId gang) {
  ActorRow row;
  row.id = request.actor;
  row.class_name = request.class_name;
  row.job = request.job;
  row.node = process.row.node;
  row.worker = request.worker;
  row.pid = process.row.pid;
  row.gang = gang;
  row.rank = request.rank;
  row.world_size = request.world_size;
  row.endpoint = request.endpoint;
  row.attributes = request.attributes;
  row.pending_reason = "waits for the rest of its gang";
  add(request.actor) = std::move(row);
}

void ActorTable::join_gang(ActorId id, std::uint64_t generation) {
  ActorRow& row = edit(id);
  row.state = ActorState::kAlive;
  row.generation = generation;
  row.pending_reason.clear();
}

void ActorTable::start(ActorId id, NodeId node, WorkerId worker) {
  ActorRow& row = edit(id);
  row.node = node;
  row.worker = worker;
  row.state = ActorState::kStarting;
  row.pending_reason.clear();
  row.cause.reset();
}

void ActorTable::set_pid(ActorId id, std::int32_t pid) {
  if (at(id).pid != pid) edit(id).pid = pid;
}

void ActorTable::take_calls(ActorId id, const std::string& endpoint) {
  ActorRow& row = edit(id);
  row.endpoint = endpoint;
  row.state = ActorState::kAlive;
}

void ActorTable::restart(ActorId id, const Error& cause) {
  ActorRow& row = edit(id);
  ++row.num_restarts;
  row.state = ActorState::kRestarting;
  row.endpoint.clear();
  row.previous = row.worker;
  row.worker = {};
  row.node = {};
  row.pid = 0;
  const std::string first_line = cause.message().substr(0, cause.message().find('\n'));
  row.pending_reason = utf8_prefix("its process ended and is started again: " + first_line, actors::RowBounds::kMaxText);
  row.cause = cause;
}

void ActorTable::die(ActorId id, const Error& cause) {
  ActorRow& row = edit(id);
  if (const auto name = names_.find({row.name_space, row.name}); name != names_.end() && name->second == id) names_.erase(name);
  row.state = ActorState::kDead;
  row.pending_reason.clear();
  row.cause = actor_died(row, cause);
  ended_.push_back(id);
}

void ActorTable::explain(ActorId id, const std::string& why) {
  if (at(id).pending_reason != why) edit(id).pending_reason = why;
}

void ActorTable::set_attributes(ActorId id, const std::map<std::string, std::string>& attributes) {
  ActorRow& row = edit(id);
  for (const auto& [name, value] : attributes) row.attributes[name] = value;
}

void ActorTable::restored() {
  for (const auto& [id, row] : *this) {
    if (row.state == ActorState::kDead) ended_.push_back(id);
  }
}

void ActorTable::forget_old(std::size_t max) {
  for (; ended_.size() > max; ended_.pop_front()) erase(ended_.front());
}

}  // namespace shoal::scheduler
