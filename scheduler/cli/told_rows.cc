#include "scheduler/cli/told_rows.h"

#include <fmt/format.h>

#include "scheduler/web/nesting.h"

namespace shoal::scheduler::cli {

using actors::ObjectState;
using actors::ToldNode;
using actors::ToldObject;
using actors::ToldProcess;
using nlohmann::json;

namespace {

const char* status_of(ObjectState state) {
  switch (state) {
    case ObjectState::kAbsent:
      return "PENDING";
    case ObjectState::kThere:
      return "FINISHED";
    case ObjectState::kFailed:
      return "FAILED";
  }
  return "?";
}

std::string host_of(const Told& told, NodeId node) {
  const auto it = told.hosts.find(node);
  return it == told.hosts.end() ? "" : it->second;
}

}  // namespace

json object_rows(const Told& told) {
  json out = json::array();
  for (const ToldNode& node : told.nodes) {
    std::map<WorkerId, const ToldProcess*> processes;
    for (const auto& p : node.processes) processes[p.worker] = &p;
    for (const ToldObject& o : node.objects) {
      json row = {{"id", o.id ? json(to_string(o.job) + to_string(o.id)) : json()},
                  {"bytes", o.bytes},
                  {"status", status_of(o.state)},
                  {"spilled", o.spilled},
                  {"job", to_string(o.job)},
                  {"node", to_string(node.node)},
                  {"host", host_of(told, node.node)}};
      const auto held = [&](const char* how, const json& worker, pid_t pid, const std::string& role) {
        row["reference"] = how;
        row["worker"] = worker;
        row["pid"] = pid;
        row["role"] = role;
        out.push_back(row);
      };
      for (const auto& h : o.holders) {
        const auto p = processes.find(h.worker);
        const bool known = p != processes.end();
        held(h.count > 0 ? "LOCAL_REFERENCE" : "PINNED_IN_MEMORY", to_string(h.worker), known ? p->second->pid : 0,
             known ? p->second->role : "");
      }
      if (o.contained > 0) held("CAPTURED_IN_OBJECT", json(), node.pid, "node");
      if (o.holders.empty() && o.contained == 0) held("PINNED_IN_MEMORY", json(), node.pid, "node");
    }
  }
  return out;
}

json environment_rows(const Told& told) {
  json out = json::array();
  for (const ToldNode& node : told.nodes) {
    for (const auto& e : node.environments) {
      auto parsed = nesting(e.text) <= kMaxNesting ? json::parse(e.text, nullptr, false) : json();
      out.push_back({{"runtime_env", parsed.is_object() ? std::move(parsed) : json::object()},
                     {"processes", e.processes},
                     {"node", to_string(node.node)},
                     {"host", host_of(told, node.node)}});
    }
  }
  return out;
}

json silent_rows(const Told& told) {
  json out = json::array();
  for (const auto& s : told.silent) {
    out.push_back({{"node", to_string(s.node)}, {"worker", s.worker ? json(to_string(s.worker)) : json()}, {"pid", s.pid}, {"why", s.why}});
  }
  return out;
}

std::vector<std::string> silent_lines(const Told& told) {
  std::vector<std::string> out;
  for (const auto& s : told.silent) {
    out.push_back(s.worker ? fmt::format("process {} (worker {}) told nothing: {}", s.pid, to_string(s.worker), s.why)
                           : fmt::format("node {} told nothing: {}", to_string(s.node), s.why));
  }
  if (told.left_out > 0) out.push_back(fmt::format("{} rows more are not shown: there are too many", told.left_out));
  return out;
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes);
  double amount = static_cast<double>(bytes) / 1024;
  const char* unit = "KiB";
  for (const char* larger : {"MiB", "GiB", "TiB"}) {
    if (amount < 1024) break;
    amount /= 1024;
    unit = larger;
  }
  return fmt::format("{:.1f} {}", amount, unit);
}

}  // namespace shoal::scheduler::cli
