#include "scheduler/cli/inspection/listing.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <vector>

#include <fmt/format.h>

#include "actors/protocol/cluster/function_worker.h"
#include "scheduler/cli/inspection/inspect_nodes.h"
#include "scheduler/cli/output.h"
#include "scheduler/web/rows.h"

namespace shoal::scheduler::cli {

using actors::Inspect;
using actors::ListReply;
using nlohmann::json;
using What = actors::ListRequest::What;

namespace {

constexpr const char* kWhats = "actors, nodes, workers, jobs, groups, tasks, objects, runtime-envs";

Result<std::pair<What, std::string>> kind_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.ends_with('s')) name += 's';
  const std::map<std::string, std::pair<What, std::string>> kinds = {
      {"actors", {What::kActors, "actors"}}, {"nodes", {What::kNodes, "nodes"}},    {"workers", {What::kWorkers, "workers"}},
      {"jobs", {What::kJobs, "jobs"}},       {"groups", {What::kGroups, "groups"}}, {"placement-groups", {What::kGroups, "groups"}}};
  if (const auto it = kinds.find(name); it != kinds.end()) return it->second;
  return fail(invalid_argument("there is no list of " + name).with_hint(kWhats).with_reason("Usage"));
}

// The kind of rows of this name, if the nodes report it and not the head.
std::optional<Inspect::What> inspected_kind(std::string& name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.ends_with('s')) name += 's';
  const std::map<std::string, Inspect::What> kinds = {
      {"objects", Inspect::What::kObjects}, {"tasks", Inspect::What::kTasks}, {"runtime-envs", Inspect::What::kEnvironments}};
  const auto it = kinds.find(name);
  return it == kinds.end() ? std::nullopt : std::optional(it->second);
}

// Display order: jobs by start time; living actors, workers and groups before ended ones.
void sort_rows(ListReply& r) {
  std::stable_sort(r.jobs.begin(), r.jobs.end(), [](const auto& a, const auto& b) { return a.started_unix_ms < b.started_unix_ms; });
  std::stable_partition(r.actors.begin(), r.actors.end(), [](const auto& a) { return a.state != actors::ActorState::kDead; });
  std::stable_partition(r.groups.begin(), r.groups.end(), [](const auto& g) { return g.state != actors::GroupState::kRemoved; });
  std::stable_partition(r.workers.begin(), r.workers.end(), [](const auto& w) { return w.state != actors::WorkerState::kExited; });
}

}  // namespace

Result<Listed> rows_of(const Common& common, std::string name) {
  if (const auto what = inspected_kind(name)) {
    SHOAL_TRY(auto cluster, connect_cluster(common));
    SHOAL_TRY(auto reported, inspect_nodes(cluster, *what));
    json rows = *what == Inspect::What::kObjects ? object_rows(reported)
                : *what == Inspect::What::kTasks ? task_rows(reported)
                                                 : environment_rows(reported);
    for (const auto& line : silent_lines(reported)) print(stderr, "shoal: {}\n", line);
    return Listed{std::move(cluster), name, {}, std::move(reported), std::move(rows)};
  }
  SHOAL_TRY(const auto kind, kind_of(name));
  SHOAL_TRY(auto cluster, connect_cluster(common));
  SHOAL_TRY(auto reply, cluster.head->list(kind.first));
  std::erase_if(reply.actors, actors::is_function_worker);
  sort_rows(reply);
  json rows = rows_json(reply);
  return Listed{std::move(cluster), kind.second, std::move(reply), {}, std::move(rows)};
}

Result<json> find_row(const json& rows, const std::string& what, const std::string& id) {
  std::vector<json> found;
  for (const auto& row : rows) {
    const auto is = [&](const char* key) { return row.contains(key) && row[key] == id; };
    if (is("id") || is("submission_id")) return row;
    const std::string its = row.value("id", json()).is_string() ? row["id"].get<std::string>() : "";
    if (its.starts_with(id) || (is("name") && what != "jobs" && what != "tasks")) found.push_back(row);
  }
  if (found.empty()) return fail(not_found("none of the " + what + " is " + id).with_hint("see shoal list " + what));
  if (found.size() > 1) return fail(invalid_argument(fmt::format("{} of the {} have an id that begins with {}", found.size(), what, id)));
  return found.front();
}

std::string text_of(const json& row, const char* key) {
  const json& v = row[key];
  return v.is_null() ? "-" : v.is_string() ? v.get<std::string>() : v.dump();
}

}  // namespace shoal::scheduler::cli
