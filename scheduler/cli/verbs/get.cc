// get, describe: one row of a cluster's state.
#include <cstdio>
#include <map>
#include <string>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/filter.h"
#include "scheduler/cli/inspection/listing.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::Method;
using nlohmann::json;

namespace {

struct GetOptions {
  std::string what, id;
  std::string format;  // json, yaml
};

// Replaces a row that comes from a list by the whole row: in a list, a cause is cut to its first line.
void whole_cause(ClusterConnection& cluster, const std::string& what, json& row) {
  if (what != "actors" && what != "jobs") return;
  const std::uint64_t id = parse_hex(row["id"].get<std::string>()).value_or(0);
  if (what == "actors") {
    const auto whole = cluster.head->request_for<actors::ActorRow>(Method::kWatchActor, to_bytes(actors::ActorRef{ActorId{id}}));
    if (whole) row = to_json(*whole);
  } else {
    const auto whole = cluster.head->request_for<actors::JobRow>(Method::kWatchJob, to_bytes(actors::JobRef{JobId{id}}));
    if (whole) row = to_json(*whole);
  }
}

// Prints all rows with this id: an object has one per holder, a task one per attempt.
int get_rows(const Common& common, const GetOptions& o, const Listed& listed) {
  std::map<std::string, json> found;  // by id
  for (const auto& row : listed.rows) {
    const std::string id = text_of(row, "id");
    if (id.starts_with(o.id)) found[id].push_back(row);
  }
  if (found.empty()) {
    return failed(common, not_found("none of the " + listed.what + " is " + o.id).with_hint("see shoal list " + listed.what));
  }
  if (found.size() > 1 && listed.what == "tasks") {
    return failed(common, invalid_argument(fmt::format("{} of the tasks have an id that begins with {}", found.size(), o.id)));
  }
  json rows = json::array();
  for (const auto& [id, its] : found) rows.insert(rows.end(), its.begin(), its.end());
  if (common.json || o.format == "json") {
    print_json({{"schema", "shoal.get/1"}, {"rows", rows}});
  } else {
    print(stdout, "{}", Lines{to_yaml(rows)});
  }
  return kOk;
}

CLI::App* add_row_verb(CommandLine& line, const char* name, const char* about, GetOptions& options) {
  auto* verb = line.add_verb(name, about);
  line.set_choices(verb->add_option("what", options.what, kKindsOfRows)->required(), kinds_of_rows());
  verb->add_option("id", options.id, "Its id, or the unique beginning of the id; `shoal list` shows ids, as in `shoal list actors`")
      ->required()
      ->check(not_empty());
  return verb;
}

int get(const Common& common, const GetOptions& o) {
  auto listed = rows_of(common, o.what);
  if (!listed) return failed(common, listed.error());
  if (listed->what == "objects" || listed->what == "tasks") return get_rows(common, o, *listed);
  auto row = find_row(listed->rows, listed->what, o.id);
  if (!row) return failed(common, row.error());
  whole_cause(listed->cluster, listed->what, *row);
  if (common.json || o.format == "json") {
    (*row)["schema"] = "shoal.get/1";
    print_json(*row);
  } else {
    print(stdout, "{}", Lines{to_yaml(*row)});
  }
  return kOk;
}

// Prints one row for people: also why it waits or ended, and the command to use next.
int describe(const Common& common, const GetOptions& o) {
  auto listed = rows_of(common, o.what);
  if (!listed) return failed(common, listed.error());
  auto row = find_row(listed->rows, listed->what, o.id);
  if (!row) return failed(common, row.error());
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
  print(stdout, "{}", Lines{to_yaml(rest)});
  if (!waits.empty()) print(stdout, "why it waits: {}\n", waits);
  if (cause.is_object()) {
    print(stdout, "why it ended: {}\n", Lines{cause.value("message", "")});
    for (const auto& frame : cause.value("in", json::array())) print(stdout, "  in: {}\n", frame.get<std::string>());
    if (!cause.value("hint", "").empty()) print(stdout, "  hint: {}\n", Lines{cause.value("hint", "")});
  }
  const std::string id = (*row)["id"];
  if (listed->what == "actors" || listed->what == "jobs" || listed->what == "workers") print(stdout, "next: shoal logs {}\n", id);
  if (listed->what == "nodes") print(stdout, "next: shoal cordon {}   |   shoal drain {}\n", id, id);
  return kOk;
}

}  // namespace

void add_get(CommandLine& line) {
  auto& options = line.own<GetOptions>();
  auto* verb = add_row_verb(line, "get", "Show all fields of one actor, node, job or other row", options);
  verb->add_option("--format", options.format, "Format of the output")->check(CLI::IsMember({"json", "yaml"}));
  line.on_run(verb, [&options](const Common& common) { return get(common, options); });
}

void add_describe(CommandLine& line) {
  auto& options = line.own<GetOptions>();
  auto* verb =
      add_row_verb(line, "describe", "Show one actor, node, job or other row: why it waits or ended, and what to do next", options);
  line.on_run(verb, [&options](const Common& common) { return describe(common, options); });
}

}  // namespace shoal::scheduler::cli
