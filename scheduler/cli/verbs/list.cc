#include "scheduler/cli/verbs/list.h"

#include <algorithm>
#include <cstdio>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "actors/protocol/cluster/exit_code.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/filter.h"
#include "scheduler/cli/inspection/listing.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using actors::ListReply;
using nlohmann::json;

namespace {

constexpr std::size_t kReportLimit = 100;  // default limit for rows that nodes report

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

// Leaves the first `limit` rows that pass the filters (0: all of these), and returns the number of those beyond the limit.
std::size_t keep(ListReply& r, const std::vector<Filter>& filters, std::size_t limit) {
  std::size_t more = 0;
  const auto some = [&](auto& rows) {
    std::erase_if(rows, [&](const auto& row) {
      const json j = to_json(row);
      return !std::all_of(filters.begin(), filters.end(), [&](const Filter& f) { return matches(j, f); });
    });
    if (limit == 0 || rows.size() <= limit) return;
    more += rows.size() - limit;
    rows.resize(limit);
  };
  some(r.actors);
  some(r.nodes);
  some(r.workers);
  some(r.jobs);
  some(r.groups);
  return more;
}

void print_more(std::size_t more) {
  if (more > 0) print(stderr, "shoal: {} rows more; --limit N shows N, --limit 0 all\n", more);
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
                      known_exit_code(j) ? std::to_string(*known_exit_code(j)) : "-", first_line(j.cause, j.pending_reason)});
    }
    print_table({"JOB", "SUBMISSION ID", "NAME", "STARTED", "STATE", "WORKERS", "EXIT", "WHY"}, rows);
  }
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
                {"forgotten", listed.reported->forgotten},
                {"silent", silent_rows(*listed.reported)}});
    return kOk;
  }
  if (o.format == "yaml" || (o.detail && o.format.empty())) {
    print(stdout, "{}", Lines{to_yaml(rows)});
  } else {
    print_inspection(rows, listed.what);
  }
  if (rows.empty() && listed.what == "tasks") {
    print(stderr,
          "shoal: {}\n  processes tell of their calls while they live: those of a job that has ended are not here any more (what "
          "they printed: shoal logs JOB; next time: shoal timeline before the end)\n",
          listed.rows.empty() ? "no process knows of a call" : "no call is like that");
  }
  print_more(more);
  return kOk;
}

}  // namespace

int list(const Common& common, const ListOptions& o) {
  std::vector<Filter> filters;
  for (const auto& text : o.filters) {
    const auto filter = parse_filter(text);
    if (!filter) return failed(common, filter.error());
    filters.push_back(*filter);
  }
  auto listed = rows_of(common, o.what);
  if (!listed) return failed(common, listed.error());
  if (!filters.empty()) {
    const auto resolved = resolve(listed->reported ? listed->rows : rows_json(listed->reply), listed->what, filters);
    if (!resolved) return failed(common, resolved.error());
  }
  if (listed->reported) return list_inspection(common, o, filters, *listed);
  const std::size_t more = keep(listed->reply, filters, o.limit.value_or(0));
  const json rows = rows_json(listed->reply);
  if (common.json || o.format == "json") {
    print_json({{"schema", "shoal.list/1"}, {"what", listed->what}, {"rows", rows}, {"more", more}});
    return kOk;
  }
  if (o.format == "yaml" || (o.detail && o.format.empty())) {
    print(stdout, "{}", Lines{to_yaml(rows)});
  } else {
    print_rows(listed->reply, listed->what);
  }
  print_more(more);
  return kOk;
}

void add_list(CommandLine& line) {
  auto& options = line.own<ListOptions>();
  auto* verb = line.add_verb("list", "List actors, nodes, workers, jobs, placement groups, tasks, objects or environments, one per row");
  line.set_choices(verb->add_option("what", options.what, kKindsOfRows)->required(), kinds_of_rows());
  verb->add_option("-f,--filter", options.filters, "Show only rows with KEY=VALUE or KEY!=VALUE; may be repeated")->allow_extra_args(false);
  verb->add_option("--limit", options.limit, "Maximum number of rows; 0 shows all (default: 100 for tasks and objects, else all)");
  verb->add_flag("--detail", options.detail, "Show all fields of each row");
  verb->add_option("--format", options.format, "Format of the output")->check(CLI::IsMember({"json", "table", "yaml"}));
  line.on_run(verb, [&options](const Common& common) { return list(common, options); });
}

}  // namespace shoal::scheduler::cli
