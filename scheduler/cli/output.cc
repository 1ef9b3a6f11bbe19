#include "scheduler/cli/output.h"

#include <algorithm>
#include <cstdio>

namespace shoal::scheduler::cli {

using nlohmann::json;

int exit_code(const Error& e) {
  if (e.reason() == "TokenRefused") return kAuth;
  if (e.reason() == "Infeasible") return kDoesNotFit;
  switch (e.code()) {
    case Code::kNotFound:
      return kNotFoundExit;
    case Code::kUnavailable:
      return kUnreachable;
    case Code::kDeadlineExceeded:
      return kTimedOut;
    default:
      return kFailed;
  }
}

int submit_exit_code(const Error& e) {
  if (e.reason() == "TokenRefused") return kSubmitAuth;
  if (e.reason() == "VersionMismatch") return kSubmitVersion;
  if (e.reason() == "Infeasible") return kSubmitDoesNotFit;
  if (e.code() == Code::kUnavailable || e.code() == Code::kDeadlineExceeded) return kSubmitUnreachable;
  return kSubmitOther;
}

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
}  // namespace

json to_json(const actors::ActorRow& r) {
  return {{"id", to_string(r.id)},
          {"class", r.class_name},
          {"state", actors::to_string(r.state)},
          {"job", to_string(r.job)},
          {"node", to_string(r.node)},
          {"worker", to_string(r.worker)},
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
          {"state", to_string(r.state)},
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
          {"exit_code", r.exit_code},
          {"pending_reason", r.pending_reason},
          {"cause", cause_json(r.cause)}};
}

void print_error(const Error& error, bool as_json) {
  if (as_json) {
    json out = to_json(error);
    out["schema"] = "shoal.error/1";
    std::printf("%s\n", out.dump().c_str());
  } else {
    std::fprintf(stderr, "%s\n", error.to_string().c_str());
  }
}

void print_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& h : header) widths.push_back(h.size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      out += cells[i];
      if (i + 1 < cells.size()) out += std::string(widths[i] - cells[i].size() + 2, ' ');
    }
    std::printf("%s\n", out.c_str());
  };
  line(header);
  for (const auto& row : rows) line(row);
}

}  // namespace shoal::scheduler::cli
