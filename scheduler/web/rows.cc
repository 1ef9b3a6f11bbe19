#include "scheduler/web/rows.h"

#include "actors/protocol/cluster/exit_code.h"
#include "runtime/wire/nesting.h"

namespace shoal::scheduler {

using nlohmann::json;

json to_json(const Error& e) {
  return {{"code", code_name(e.code())}, {"reason", e.reason()}, {"message", e.message()}, {"hint", e.hint()}, {"in", e.context()}};
}

json to_json(const actors::Resources& resources) {
  json out = json::object();
  for (const auto& [name, units] : resources.all()) out[name] = static_cast<double>(units) / actors::Resources::kUnit;
  return out;
}

namespace {
json cause_json(const std::optional<Error>& cause) { return cause ? to_json(*cause) : json(); }
json exit_code_json(const actors::JobRow& r) {
  const auto code = known_exit_code(r);
  return code ? json(*code) : json();
}
}  // namespace

json to_json(const actors::ActorRow& r) {
  return {{"id", to_string(r.id)},
          {"class", r.class_name},
          {"state", actors::to_string(r.state)},
          {"job", to_string(r.job)},
          {"node", to_string(r.node)},
          {"worker", to_string(r.worker)},
          {"previous_worker", r.previous ? json(to_string(r.previous)) : json()},
          {"pid", r.pid},
          {"rank", r.rank},
          {"world_size", r.world_size},
          {"generation", r.generation},
          {"name", r.name},
          {"namespace", r.name_space},
          {"detached", r.detached},
          {"max_restarts", r.max_restarts},
          {"num_restarts", r.num_restarts},
          {"endpoint", r.endpoint},
          {"pending_reason", r.pending_reason},
          {"attributes", r.attributes},
          {"cause", cause_json(r.cause)}};
}

json to_json(const actors::NodeRow& r) {
  return {{"id", to_string(r.id)},
          {"host", r.host},
          {"pid", r.pid},
          {"state", state_text(r)},
          {"drain_until_unix_ms", r.drain_until_unix_ms},
          {"endpoint", r.endpoint},
          {"total", to_json(r.total)},
          {"available", to_json(r.available)},
          {"labels", r.labels}};
}

json to_json(const actors::GroupRow& r) {
  json bundles = json::array();
  for (std::size_t i = 0; i < r.bundles.size(); ++i) {
    bundles.push_back({{"resources", to_json(r.bundles[i])}, {"node", r.nodes[i] ? json(to_string(r.nodes[i])) : json()}});
  }
  return {{"id", to_string(r.id)},
          {"job", r.job ? json(to_string(r.job)) : json()},
          {"name", r.name},
          {"namespace", r.name_space},
          {"strategy", actors::to_string(r.strategy)},
          {"state", actors::to_string(r.state)},
          {"bundles", bundles},
          {"pending_reason", r.pending_reason},
          {"cause", cause_json(r.cause)}};
}

json to_json(const actors::WorkerRow& r) {
  return {{"id", to_string(r.id)}, {"node", to_string(r.node)},   {"job", to_string(r.job)},
          {"pid", r.pid},          {"state", to_string(r.state)}, {"role", r.role},
          {"rank", r.rank},        {"cause", cause_json(r.cause)}};
}

json to_json(const actors::JobRow& r) {
  return {{"id", to_string(r.id)},
          {"name", r.name},
          {"state", actors::to_string(r.state)},
          {"driver_pid", r.driver_pid},
          {"num_workers", r.num_workers},
          {"started_unix_ms", r.started_unix_ms},
          {"ended_unix_ms", r.ended_unix_ms},
          {"exit_code", exit_code_json(r)},
          {"submission_id", r.submission.id},
          {"entrypoint", r.submission.entrypoint},
          {"metadata", r.submission.metadata},
          {"pending_reason", r.pending_reason},
          {"cause", cause_json(r.cause)}};
}

json rows_json(const actors::ListReply& reply) {
  json out = json::array();
  const auto add = [&](const auto& rows) {
    for (const auto& row : rows) out.push_back(to_json(row));
  };
  add(reply.actors);
  add(reply.nodes);
  add(reply.workers);
  add(reply.jobs);
  add(reply.groups);
  return out;
}

bool is_job(const actors::JobRow& row, const std::string& id) {
  return !id.empty() && (row.submission.id == id || to_string(row.id) == id);
}

json job_details(const actors::JobRow& r) {
  const auto& s = r.submission;
  const auto time = [](std::int64_t unix_ms) { return unix_ms == 0 ? json() : json(unix_ms); };
  const bool over = actors::ended(r.state);
  std::string message = r.pending_reason;
  if (over) message = r.cause ? r.cause->message() : std::string("Job ") + actors::to_string(r.state);
  const bool shown = !s.runtime_env.empty() && nesting(s.runtime_env) <= kMaxNesting;
  auto env = json::parse(shown ? s.runtime_env : "{}", nullptr, false);
  return {{"type", s.id.empty() ? "DRIVER" : "SUBMISSION"},
          {"job_id", to_string(r.id)},
          {"submission_id", s.id.empty() ? json() : json(s.id)},
          {"status", actors::to_string(r.state)},
          {"entrypoint", s.id.empty() ? r.name : s.entrypoint},
          {"message", message},
          {"error_type", r.cause ? json(r.cause->reason()) : json()},
          {"start_time", time(r.started_unix_ms)},
          {"end_time", time(r.ended_unix_ms)},
          {"metadata", s.metadata},
          {"runtime_env", env.is_discarded() ? json::object() : std::move(env)},
          {"driver_info", r.driver_pid == 0 ? json() : json({{"pid", std::to_string(r.driver_pid)}})},
          {"driver_exit_code", exit_code_json(r)}};
}

}  // namespace shoal::scheduler
