#include "scheduler/cli/inspection/inspection_rows.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "runtime/wire/nesting.h"

namespace shoal::scheduler::cli {

using actors::NodeReport;
using actors::ObjectReport;
using actors::ObjectState;
using actors::ProcessReport;
using actors::TaskReport;
using actors::TaskState;
using nlohmann::json;

namespace {

constexpr const char* kConstruct = "__init__";
// The lower bits of a task's number, without its attempt (task_number in actors/value/call.h).
constexpr std::uint64_t kNumberBits = (std::uint64_t{1} << 56) - 1;
constexpr std::uint64_t kLastAttempt = 255;

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

std::string host_of(const InspectionReply& reported, NodeId node) {
  const auto it = reported.hosts.find(node);
  return it == reported.hosts.end() ? "" : it->second;
}

}  // namespace

json object_rows(const InspectionReply& reported) {
  json out = json::array();
  for (const NodeReport& node : reported.nodes) {
    std::map<WorkerId, const ProcessReport*> processes;
    for (const auto& p : node.processes) processes[p.worker] = &p;
    for (const ObjectReport& o : node.objects) {
      json row = {{"id", o.id ? json(to_string(o.job) + to_string(o.id)) : json()},
                  {"bytes", o.bytes},
                  {"status", status_of(o.state)},
                  {"spilled", o.spilled},
                  {"job", to_string(o.job)},
                  {"node", to_string(node.node)},
                  {"host", host_of(reported, node.node)}};
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

namespace {

struct Teller {
  const NodeReport* node = nullptr;
  const ProcessReport* process = nullptr;
};

bool over(TaskState state) { return state == TaskState::kFinished || state == TaskState::kFailed; }

// Chooses between two reports of one attempt. A report of the attempt's end is better than any other. Next comes one of the process that
// ran the attempt, since it has the times. All attempts from the 255th on share a number. Among those, a report that began after the other
// one's end belongs to a later attempt.
bool better(const TaskReport& a, bool a_ran_it, const TaskReport& b, bool b_ran_it) {
  if (over(a.state) != over(b.state)) {
    const TaskReport &ended = over(a.state) ? a : b, &other = over(a.state) ? b : a;
    const bool later = a.number >> 56 == kLastAttempt && ended.end_unix_us != 0 && other.start_unix_us >= ended.end_unix_us;
    return (&ended == &a) != later;
  }
  if (over(a.state)) return a_ran_it && !b_ran_it;
  return a.state > b.state;
}

bool of_ours(const TaskReport& t, bool of_functions) { return t.method.starts_with("__shoal") || (t.method == kConstruct && of_functions); }

json time_of(std::int64_t unix_us) { return unix_us == 0 ? json() : json(static_cast<double>(unix_us) / 1000); }

}  // namespace

json task_rows(const InspectionReply& reported) {
  struct Best {
    const TaskReport* task = nullptr;
    Teller teller;
    bool ran_it = false;
  };
  std::map<std::pair<WorkerId, std::uint64_t>, Best> tasks;
  std::map<WorkerId, JobId> jobs;
  for (const NodeReport& node : reported.nodes) {
    for (const auto& p : node.processes) {
      jobs[p.worker] = p.job;
      for (const auto& t : p.tasks) {
        const bool ran_it = p.worker != t.caller && t.state >= TaskState::kPendingTurn;
        Best& best = tasks[{t.caller, t.number}];
        if (best.task == nullptr || better(t, ran_it, *best.task, best.ran_it)) best = {&t, {&node, &p}, ran_it};
      }
    }
  }
  std::vector<std::pair<std::tuple<bool, std::int64_t>, json>> rows;
  for (const auto& [key, best] : tasks) {
    const TaskReport& t = *best.task;
    const auto actor = reported.actors.find(t.actor);
    const bool known = actor != reported.actors.end();
    const std::string class_name = known ? actor->second.class_name : "";
    const bool of_functions = known && actors::is_function_worker(actor->second);
    if (of_ours(t, of_functions)) continue;
    const bool function = !t.function.empty() || of_functions || !t.actor;
    const bool creation = !function && t.method == kConstruct;
    const std::string method = known ? class_name + "." + t.method : t.method;
    // A task's place is the process that reported to run it, or else the actor's process in the head's row.
    const bool placed = !best.ran_it && known && t.state >= TaskState::kSubmitted && t.state != TaskState::kPendingTurn;
    json node, host, worker, pid;
    if (best.ran_it) {
      node = to_string(best.teller.node->node), host = host_of(reported, best.teller.node->node);
      worker = to_string(best.teller.process->worker), pid = best.teller.process->pid;
    } else if (placed && actor->second.worker) {
      const actors::ActorRow& r = actor->second;
      node = to_string(r.node), host = host_of(reported, r.node), worker = to_string(r.worker), pid = r.pid;
    }
    const auto job = jobs.find(t.caller);
    json row = {{"id", to_string(t.caller) + hex(t.number & kNumberBits)},
                {"attempt", t.number >> 56},
                {"name", function ? (t.function.empty() ? t.method : t.function) : method},
                {"state", to_string(t.state)},
                {"type", function   ? "NORMAL_TASK"
                         : creation ? "ACTOR_CREATION_TASK"
                                    : "ACTOR_TASK"},
                {"job", to_string(job == jobs.end() ? best.teller.process->job : job->second)},
                {"actor", function || !t.actor ? json() : json(to_string(t.actor))},
                {"caller", to_string(t.caller)},
                {"node", node},
                {"host", host},
                {"worker", worker},
                {"pid", pid},
                {"start_unix_ms", time_of(t.start_unix_us)},
                {"end_unix_ms", time_of(t.end_unix_us)},
                {"error_type", t.error.empty() ? json() : json(t.error)}};
    rows.push_back({{over(t.state), -std::max(t.end_unix_us, t.start_unix_us)}, std::move(row)});
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  json out = json::array();
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  return out;
}

json trace_of(const json& tasks, std::int64_t now_unix_us) {
  struct Lane {
    int number = 0;
    double free_from = 0;
  };
  std::map<std::string, int> nodes;
  std::map<std::string, std::vector<Lane>> lanes;  // by process
  std::vector<const json*> shown;
  for (const auto& t : tasks) {
    if (!t["start_unix_ms"].is_null() && !t["worker"].is_null()) shown.push_back(&t);
  }
  std::stable_sort(shown.begin(), shown.end(),
                   [](const json* a, const json* b) { return (*a)["start_unix_ms"].get<double>() < (*b)["start_unix_ms"].get<double>(); });
  int next_lane = 1;
  json out = json::array();
  const auto named = [&](const char* what, int process, int lane, const std::string& name) {
    out.push_back({{"name", what}, {"ph", "M"}, {"pid", process}, {"tid", lane}, {"args", {{"name", name}}}});
  };
  for (const json* task : shown) {
    const json& t = *task;
    const std::string worker = t["worker"], node = t["node"];
    const auto us = [&](const char* key) { return std::round(t[key].get<double>() * 1000); };
    const double start = us("start_unix_ms");
    const double end = std::max(start, t["end_unix_ms"].is_null() ? static_cast<double>(now_unix_us) : us("end_unix_ms"));
    const auto [process, is_new] = nodes.try_emplace(node, static_cast<int>(nodes.size()) + 1);
    if (is_new) named("process_name", process->second, 0, "node " + node + " " + t["host"].get<std::string>());
    auto& mine = lanes[worker];
    auto lane = std::find_if(mine.begin(), mine.end(), [&](const Lane& l) { return l.free_from <= start; });
    if (lane == mine.end()) {
      mine.push_back({next_lane++, 0});
      lane = mine.end() - 1;
      const std::string which = mine.size() == 1 ? "" : fmt::format(" ({})", mine.size());
      named("thread_name", process->second, lane->number, fmt::format("pid {} worker {}{}", t["pid"].dump(), worker, which));
    }
    lane->free_from = end;
    json args = json::object();
    for (const char* key : {"id", "attempt", "state", "type", "job", "actor", "error_type"}) {
      if (!t[key].is_null()) args[key] = t[key];
    }
    out.push_back({{"name", t["name"]},
                   {"cat", t["type"]},
                   {"ph", "X"},
                   {"pid", process->second},
                   {"tid", lane->number},
                   {"ts", start},
                   {"dur", end - start},
                   {"args", std::move(args)}});
  }
  return out;
}

json environment_rows(const InspectionReply& reported) {
  json out = json::array();
  for (const NodeReport& node : reported.nodes) {
    for (const auto& e : node.environments) {
      auto parsed = nesting(e.text) <= kMaxNesting ? json::parse(e.text, nullptr, false) : json();
      out.push_back({{"runtime_env", parsed.is_object() ? std::move(parsed) : json::object()},
                     {"processes", e.processes},
                     {"node", to_string(node.node)},
                     {"host", host_of(reported, node.node)}});
    }
  }
  return out;
}

json silent_rows(const InspectionReply& reported) {
  json out = json::array();
  for (const auto& s : reported.silent) {
    out.push_back({{"node", to_string(s.node)}, {"worker", s.worker ? json(to_string(s.worker)) : json()}, {"pid", s.pid}, {"why", s.why}});
  }
  return out;
}

std::vector<std::string> silent_lines(const InspectionReply& reported) {
  std::vector<std::string> out;
  for (const auto& s : reported.silent) {
    out.push_back(s.worker ? fmt::format("process {} (worker {}) told nothing: {}", s.pid, to_string(s.worker), s.why)
                           : fmt::format("node {} told nothing: {}", to_string(s.node), s.why));
  }
  if (reported.left_out > 0) out.push_back(fmt::format("{} rows more are not shown: there are too many", reported.left_out));
  if (reported.forgotten > 0) {
    out.push_back(
        fmt::format("{} ended calls are not shown: each process keeps its last ones, those that failed apart (shoal metrics counts all)",
                    reported.forgotten));
  }
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
