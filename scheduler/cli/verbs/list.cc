// list, get, summary, describe: rows of a cluster's state.
#include <algorithm>
#include <cstdio>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "actors/cluster/function_worker.h"
#include "scheduler/cli/inspection/ask_nodes.h"
#include "scheduler/cli/commands.h"
#include "scheduler/cli/inspection/filter.h"
#include "scheduler/cli/output.h"

namespace shoal::scheduler::cli {

using actors::Inspect;
using actors::ListReply;
using actors::ListRequest;
using actors::Method;
using nlohmann::json;

namespace {

using What = ListRequest::What;

constexpr const char* kWhats = "actors, nodes, workers, jobs, groups, tasks, objects, runtime-envs";
constexpr std::size_t kReportLimit = 100;  // default limit for rows that nodes report

// Singular and plural name one kind; Ray's names are accepted as well.
Result<std::pair<What, std::string>> kind_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.ends_with('s')) name += 's';
  const std::map<std::string, std::pair<What, std::string>> kinds = {
      {"actors", {What::kActors, "actors"}}, {"nodes", {What::kNodes, "nodes"}},    {"workers", {What::kWorkers, "workers"}},
      {"jobs", {What::kJobs, "jobs"}},       {"groups", {What::kGroups, "groups"}}, {"placement-groups", {What::kGroups, "groups"}}};
  if (const auto it = kinds.find(name); it != kinds.end()) return it->second;
  return fail(invalid_argument("there is no list of " + name).with_hint(kWhats).with_reason("Usage"));
}

// Kinds that the head does not keep: the nodes report them.
std::optional<Inspect::What> inspected_kind(std::string& name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (!name.ends_with('s')) name += 's';
  const std::map<std::string, Inspect::What> kinds = {
      {"objects", Inspect::What::kObjects}, {"tasks", Inspect::What::kTasks}, {"runtime-envs", Inspect::What::kEnvironments}};
  const auto it = kinds.find(name);
  return it == kinds.end() ? std::nullopt : std::optional(it->second);
}

int refused(const Common& common, const Error& e) {
  print_error(e, common.json);
  return e.reason() == "Usage" ? static_cast<int>(kUsage) : exit_code(e);
}

void print_json(const json& out) { std::printf("%s\n", out.dump(-1, ' ', false, json::error_handler_t::replace).c_str()); }

std::string brief(std::uint64_t id) { return id ? hex(id).substr(0, 8) : "-"; }

std::string first_line(const std::optional<Error>& cause, const std::string& otherwise) {
  if (!cause) return otherwise;
  return cause->message().substr(0, cause->message().find('\n'));
}

std::string full_name(const std::string& name, const std::string& name_space) { return name.empty() ? "-" : name_space + "/" + name; }

std::string attribute_text(const std::map<std::string, std::string>& attributes) {
  std::string out;
  for (const auto& [name, value] : attributes) out += (out.empty() ? "" : " ") + name + "=" + value;
  return out;
}

std::string local_time(std::int64_t unix_ms) {
  return unix_ms == 0 ? "-" : fmt::format("{:%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(unix_ms / 1000)));
}

// Display order: jobs by start time; living actors, workers and groups before ended ones.
void sort_rows(ListReply& r) {
  std::stable_sort(r.jobs.begin(), r.jobs.end(), [](const auto& a, const auto& b) { return a.started_unix_ms < b.started_unix_ms; });
  std::stable_partition(r.actors.begin(), r.actors.end(), [](const auto& a) { return a.state != actors::ActorState::kDead; });
  std::stable_partition(r.groups.begin(), r.groups.end(), [](const auto& g) { return g.state != actors::GroupState::kRemoved; });
  std::stable_partition(r.workers.begin(), r.workers.end(), [](const auto& w) { return w.state != actors::WorkerState::kExited; });
}

void keep(ListReply& r, const std::vector<Filter>& filters, std::size_t limit) {
  const auto some = [&](auto& rows) {
    std::erase_if(rows, [&](const auto& row) {
      const json j = to_json(row);
      return !std::all_of(filters.begin(), filters.end(), [&](const Filter& f) { return matches(j, f); });
    });
    if (limit > 0 && rows.size() > limit) rows.resize(limit);
  };
  some(r.actors);
  some(r.nodes);
  some(r.workers);
  some(r.jobs);
  some(r.groups);
}

void print_rows(const ListReply& r, const std::string& what) {
  std::vector<std::vector<std::string>> rows;
  if (what == "actors") {
    for (const auto& a : r.actors) {
      rows.push_back({to_string(a.id), a.class_name, full_name(a.name, a.name_space), actors::to_string(a.state),
                      a.world_size > 1 ? fmt::format("{}/{}", a.rank, a.world_size) : "-", std::to_string(a.pid), brief(a.node.value),
                      std::to_string(a.generation), attribute_text(a.attributes), first_line(a.cause, a.pending_reason)});
    }
    print_table({"ACTOR", "CLASS", "NAME", "STATE", "RANK", "PID", "NODE", "GENERATION", "ATTRIBUTES", "WHY"}, rows);
  } else if (what == "nodes") {
    for (const auto& n : r.nodes) {
      rows.push_back({to_string(n.id), n.host, state_text(n), std::to_string(n.pid), for_people(n.available).to_string(),
                      for_people(n.total).to_string(), attribute_text(n.labels)});
    }
    print_table({"NODE", "HOST", "STATE", "PID", "FREE", "TOTAL", "LABELS"}, rows);
  } else if (what == "workers") {
    for (const auto& w : r.workers) {
      rows.push_back({to_string(w.id), w.role, to_string(w.state), std::to_string(w.pid), brief(w.node.value), brief(w.job.value),
                      first_line(w.cause, "")});
    }
    print_table({"WORKER", "ROLE", "STATE", "PID", "NODE", "JOB", "WHY"}, rows);
  } else if (what == "groups") {
    for (const auto& g : r.groups) {
      std::string bundles;
      for (std::size_t i = 0; i < g.bundles.size(); ++i) {
        bundles += fmt::format("{}{} on {}", bundles.empty() ? "" : "; ", g.bundles[i].to_string(), brief(g.nodes[i].value));
      }
      rows.push_back({to_string(g.id), full_name(g.name, g.name_space), actors::to_string(g.state), actors::to_string(g.strategy),
                      brief(g.job.value), bundles, first_line(g.cause, g.pending_reason)});
    }
    print_table({"GROUP", "NAME", "STATE", "STRATEGY", "JOB", "BUNDLES", "WHY"}, rows);
  } else {
    for (const auto& j : r.jobs) {
      rows.push_back({to_string(j.id), j.submission.id.empty() ? "-" : j.submission.id, j.name, local_time(j.started_unix_ms),
                      actors::to_string(j.state), j.num_workers ? std::to_string(j.num_workers) : "-",
                      j.ended_unix_ms ? std::to_string(j.exit_code) : "-", first_line(j.cause, j.pending_reason)});
    }
    print_table({"JOB", "SUBMISSION ID", "NAME", "STARTED", "STATE", "WORKERS", "EXIT", "WHY"}, rows);
  }
}

struct Listed {
  ClusterConnection cluster;
  std::string what;  // plural name
  ListReply reply;
  std::optional<InspectionReply> reported;  // instead of the reply
  json rows;                                // before filters and limit
};

Result<Listed> rows_of(const Common& common, std::string name) {
  if (const auto what = inspected_kind(name)) {
    SHOAL_TRY(auto cluster, connect_cluster(common));
    SHOAL_TRY(auto reported, ask_nodes(cluster, *what));
    json rows = *what == Inspect::What::kObjects ? object_rows(reported)
                : *what == Inspect::What::kTasks ? task_rows(reported)
                                                 : environment_rows(reported);
    for (const auto& line : silent_lines(reported)) std::fprintf(stderr, "shoal: %s\n", line.c_str());
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

std::string text_of(const json& row, const char* key) {
  const json& v = row[key];
  return v.is_null() ? "-" : v.is_string() ? v.get<std::string>() : v.dump();
}

void print_inspection(const json& all, const std::string& what) {
  std::vector<std::vector<std::string>> rows;
  if (what == "objects") {
    for (const auto& r : all) {
      rows.push_back({text_of(r, "id"), bytes_text(r["bytes"].get<std::uint64_t>()), text_of(r, "status"), text_of(r, "reference"),
                      r["spilled"].get<bool>() ? "file" : "memory", text_of(r, "pid"), text_of(r, "role"),
                      text_of(r, "node").substr(0, 8)});
    }
    print_table({"OBJECT", "SIZE", "STATUS", "REFERENCE", "IN", "PID", "ROLE", "NODE"}, rows);
  } else if (what == "tasks") {
    for (const auto& r : all) {
      const bool ended = !r["end_unix_ms"].is_null() && !r["start_unix_ms"].is_null();
      const double took = ended ? (r["end_unix_ms"].get<double>() - r["start_unix_ms"].get<double>()) / 1000 : 0;
      rows.push_back({text_of(r, "id"), text_of(r, "name"), text_of(r, "state"), text_of(r, "type"), text_of(r, "pid"),
                      text_of(r, "node").substr(0, 8), ended ? fmt::format("{:.6f}", took) : "-", text_of(r, "error_type")});
    }
    print_table({"TASK", "NAME", "STATE", "TYPE", "PID", "NODE", "SECONDS", "ERROR"}, rows);
  } else {
    for (const auto& r : all) rows.push_back({text_of(r, "node").substr(0, 8), text_of(r, "processes"), text_of(r, "runtime_env")});
    print_table({"NODE", "PROCESSES", "RUNTIME ENV"}, rows);
  }
}

int list_inspection(const Common& common, const ListOptions& o, const std::vector<Filter>& filters, const Listed& listed) {
  json rows = json::array();
  std::size_t more = 0;
  const std::size_t limit = o.limit.value_or(kReportLimit);
  for (const auto& row : listed.rows) {
    if (!std::all_of(filters.begin(), filters.end(), [&](const Filter& f) { return matches(row, f); })) continue;
    if (limit > 0 && rows.size() == limit) {
      ++more;
    } else {
      rows.push_back(row);
    }
  }
  if (common.json || o.format == "json") {
    print_json({{"schema", "shoal.list/1"},
                {"what", listed.what},
                {"rows", rows},
                {"more", more},
                {"left_out", listed.reported->left_out},
                {"silent", silent_rows(*listed.reported)}});
    return kOk;
  }
  if (o.format == "yaml" || (o.detail && o.format.empty())) {
    std::printf("%s", to_yaml(rows).c_str());
  } else {
    print_inspection(rows, listed.what);
  }
  if (rows.empty() && listed.what == "tasks") {
    std::fprintf(stderr,
                 "shoal: %s\n  processes tell of their calls while they live: those of a job that has ended are not here any more (what "
                 "they printed: shoal logs JOB; next time: shoal timeline before the end)\n",
                 listed.rows.empty() ? "no process knows of a call" : "no call is like that");
  }
  if (more > 0) std::fprintf(stderr, "shoal: %zu rows more; --limit N shows N, --limit 0 all\n", more);
  return kOk;
}

// The row with this id, or the only one whose id starts with it. Actors also match by name, jobs by submission id.
Result<json> find_row(const json& rows, const std::string& what, const std::string& id) {
  std::vector<json> found;
  for (const auto& row : rows) {
    const auto is = [&](const char* key) { return row.contains(key) && row[key] == id; };
    if (is("id") || is("submission_id")) return row;
    const std::string its = row.value("id", json()).is_string() ? row["id"].get<std::string>() : "";
    if (!id.empty() && (its.starts_with(id) || (is("name") && what != "jobs" && what != "tasks"))) found.push_back(row);
  }
  if (found.empty()) return fail(not_found("none of the " + what + " is " + id).with_hint("see shoal list " + what));
  if (found.size() > 1) return fail(invalid_argument(fmt::format("{} of the {} have an id that begins with {}", found.size(), what, id)));
  return found.front();
}

// Replaces a row of a list, which has the first line of a cause only, by the whole row.
void whole_cause(ClusterConnection& cluster, const std::string& what, json& row) {
  if (what != "actors" && what != "jobs") return;
  const std::uint64_t id = parse_hex(row["id"].get<std::string>()).value_or(0);
  if (what == "actors") {
    const auto whole = cluster.head->ask_for<actors::ActorRow>(Method::kWatchActor, to_bytes(actors::ActorRef{ActorId{id}}));
    if (whole) row = to_json(*whole);
  } else {
    const auto whole = cluster.head->ask_for<actors::JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{JobId{id}}));
    if (whole) row = to_json(*whole);
  }
}

// An object has a row per holder, a task a row per attempt.
int get_rows(const Common& common, const GetOptions& o, const Listed& listed) {
  std::map<std::string, json> found;  // by id
  for (const auto& row : listed.rows) {
    const std::string id = text_of(row, "id");
    if (!o.id.empty() && id.starts_with(o.id)) found[id].push_back(row);
  }
  if (found.empty()) {
    return refused(common, not_found("none of the " + listed.what + " is " + o.id).with_hint("see shoal list " + listed.what));
  }
  if (found.size() > 1 && listed.what == "tasks") {
    return refused(common, invalid_argument(fmt::format("{} of the tasks have an id that begins with {}", found.size(), o.id)));
  }
  json rows = json::array();
  for (const auto& [id, its] : found) rows.insert(rows.end(), its.begin(), its.end());
  if (common.json || o.format == "json") {
    print_json({{"schema", "shoal.get/1"}, {"rows", rows}});
  } else {
    std::printf("%s", to_yaml(rows).c_str());
  }
  return kOk;
}

}  // namespace

int list(const Common& common, const ListOptions& o) {
  std::vector<Filter> filters;
  for (const auto& text : o.filters) {
    const auto filter = parse_filter(text);
    if (!filter) return refused(common, filter.error());
    filters.push_back(*filter);
  }
  auto listed = rows_of(common, o.what);
  if (!listed) return refused(common, listed.error());
  if (!filters.empty()) {
    const auto resolved = resolve(listed->reported ? listed->rows : rows_json(listed->reply), listed->what, filters);
    if (!resolved) return refused(common, resolved.error());
  }
  if (listed->reported) return list_inspection(common, o, filters, *listed);
  keep(listed->reply, filters, o.limit.value_or(0));
  const json rows = rows_json(listed->reply);
  if (common.json || o.format == "json") {
    print_json({{"schema", "shoal.list/1"}, {"what", listed->what}, {"rows", rows}});
  } else if (o.format == "yaml" || (o.detail && o.format.empty())) {
    std::printf("%s", to_yaml(rows).c_str());
  } else {
    print_rows(listed->reply, listed->what);
  }
  return kOk;
}

int get(const Common& common, const GetOptions& o) {
  auto listed = rows_of(common, o.what);
  if (!listed) return refused(common, listed.error());
  if (listed->what == "objects" || listed->what == "tasks") return get_rows(common, o, *listed);
  auto row = find_row(listed->rows, listed->what, o.id);
  if (!row) return refused(common, row.error());
  whole_cause(listed->cluster, listed->what, *row);
  if (common.json || o.format == "json") {
    (*row)["schema"] = "shoal.get/1";
    print_json(*row);
  } else {
    std::printf("%s", to_yaml(*row).c_str());
  }
  return kOk;
}

int summary(const Common& common, const std::string& name) {
  const auto listed = rows_of(common, name);
  if (!listed) return refused(common, listed.error());
  std::map<std::pair<std::string, std::string>, std::size_t> counts;  // by kind or name, and state
  // For these kinds the counts are also by this field (names), or by this field instead of the state (states).
  const std::map<std::string, std::string> names = {
      {"actors", "class"}, {"workers", "role"}, {"tasks", "name"}, {"runtime-envs", "runtime_env"}};
  const std::map<std::string, std::string> states = {{"objects", "reference"}, {"runtime-envs", "node"}};
  const json& rows = listed->rows;
  for (const auto& row : rows) {
    const auto name = names.find(listed->what), state = states.find(listed->what);
    ++counts[{name == names.end() ? listed->what : text_of(row, name->second.c_str()),
              text_of(row, state == states.end() ? "state" : state->second.c_str())}];
  }
  if (common.json) {
    json out = json::object();
    for (const auto& [of, count] : counts) out[of.first][of.second] = count;
    print_json({{"schema", "shoal.summary/1"}, {"what", listed->what}, {"total", rows.size()}, {"summary", out}});
    return kOk;
  }
  std::vector<std::vector<std::string>> table;
  for (const auto& [of, count] : counts) table.push_back({of.first, of.second, std::to_string(count)});
  print_table({"WHAT", "STATE", "COUNT"}, table);
  return kOk;
}

int describe(const Common& common, const GetOptions& o) {
  auto listed = rows_of(common, o.what);
  if (!listed) return refused(common, listed.error());
  auto row = find_row(listed->rows, listed->what, o.id);
  if (!row) return refused(common, row.error());
  whole_cause(listed->cluster, listed->what, *row);
  if (common.json) {
    (*row)["schema"] = "shoal.describe/1";
    print_json(*row);
    return kOk;
  }
  const json cause = row->contains("cause") ? (*row)["cause"] : json();
  const std::string waits = row->value("pending_reason", "");
  json rest = *row;
  for (const char* reported : {"cause", "pending_reason"}) rest.erase(reported);
  std::printf("%s", to_yaml(rest).c_str());
  if (!waits.empty()) std::printf("why it waits: %s\n", waits.c_str());
  if (cause.is_object()) {
    std::printf("why it ended: %s\n", cause.value("message", "").c_str());
    for (const auto& frame : cause.value("in", json::array())) std::printf("  in: %s\n", frame.get<std::string>().c_str());
    if (!cause.value("hint", "").empty()) std::printf("  hint: %s\n", cause.value("hint", "").c_str());
  }
  const std::string id = (*row)["id"];
  if (listed->what == "actors" || listed->what == "jobs" || listed->what == "workers") std::printf("next: shoal logs %s\n", id.c_str());
  if (listed->what == "nodes") std::printf("next: shoal cordon %s   |   shoal drain %s\n", id.c_str(), id.c_str());
  return kOk;
}

}  // namespace shoal::scheduler::cli
