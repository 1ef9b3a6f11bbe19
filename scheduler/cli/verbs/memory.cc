// memory: the holders of objects, and the memory that objects take on each node.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <set>
#include <string>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/inspect_nodes.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

struct MemoryOptions {
  std::string group_by = "NODE_ADDRESS", sort_by = "OBJECT_SIZE";
  std::size_t limit = 100;  // rows of each group; 0: all
  bool stats_only = false;
};

constexpr const char* kReferences[] = {"LOCAL_REFERENCE", "PINNED_IN_MEMORY", "CAPTURED_IN_OBJECT"};

std::string field_text(const json& row, const char* key) { return row[key].is_string() ? row[key].get<std::string>() : row[key].dump(); }

std::string group_of(const json& row, const std::string& by) {
  if (by == "JOB") return "job " + field_text(row, "job");
  if (by == "PROCESS") return fmt::format("{} pid {} on {}", field_text(row, "role"), field_text(row, "pid"), field_text(row, "host"));
  return fmt::format("node {} ({})", field_text(row, "node"), field_text(row, "host"));
}

struct Sums {
  std::uint64_t bytes = 0, spilled = 0;  // counts each object once
  std::size_t objects = 0;
  std::map<std::string, std::size_t> references;
};

Sums sums_of(const std::vector<json>& rows) {
  Sums out;
  std::set<std::pair<std::string, std::string>> seen;
  for (const auto& row : rows) {
    ++out.references[field_text(row, "reference")];
    if (row["id"].is_string() && !seen.emplace(field_text(row, "node"), field_text(row, "id")).second) continue;
    ++out.objects;
    (row["spilled"].get<bool>() ? out.spilled : out.bytes) += row["bytes"].get<std::uint64_t>();
  }
  return out;
}

void sort_rows(std::vector<json>& rows, const std::string& by) {
  const auto key = [&](const json& row) {
    const auto bytes = row["bytes"].get<std::uint64_t>();
    if (by == "PID") return std::tuple(row["pid"].get<int>(), std::string(), ~bytes);
    if (by == "REFERENCE_TYPE") return std::tuple(0, field_text(row, "reference"), ~bytes);
    return std::tuple(0, std::string(), ~bytes);
  };
  std::stable_sort(rows.begin(), rows.end(), [&](const json& a, const json& b) { return key(a) < key(b); });
}

json nodes_json(const InspectionReply& reported) {
  json out = json::array();
  for (const auto& n : reported.nodes) {
    const auto host = reported.hosts.find(n.node);
    out.push_back({{"node", to_string(n.node)},
                   {"host", host == reported.hosts.end() ? "" : host->second},
                   {"kept_bytes", n.kept_bytes},
                   {"spilled_bytes", n.spilled_bytes},
                   {"limit_bytes", n.limit_bytes}});
  }
  return out;
}

void print_group(const std::string& name, const std::vector<json>& rows, const MemoryOptions& o) {
  const Sums sums = sums_of(rows);
  print(stdout, "--- {} ---\n", name);
  std::vector<std::string> line = {std::to_string(sums.objects), bytes_text(sums.bytes), bytes_text(sums.spilled)};
  for (const char* kind : kReferences) line.push_back(std::to_string(sums.references.contains(kind) ? sums.references.at(kind) : 0));
  print_table({"OBJECTS", "IN MEMORY", "IN FILES", "LOCAL REFERENCES", "PINNED", "CAPTURED IN OBJECTS"}, {line});
  if (!o.stats_only && !rows.empty()) {
    print(stdout, "\n");
    std::vector<std::vector<std::string>> table;
    for (const auto& r : rows) {
      if (o.limit > 0 && table.size() == o.limit) break;
      table.push_back({field_text(r, "host"), field_text(r, "pid"), field_text(r, "role"), field_text(r, "status"),
                       bytes_text(r["bytes"].get<std::uint64_t>()), r["spilled"].get<bool>() ? "file" : "memory",
                       field_text(r, "reference"), r["id"].is_string() ? field_text(r, "id") : "-"});
    }
    print_table({"IP", "PID", "ROLE", "STATUS", "SIZE", "IN", "REFERENCE", "OBJECT"}, table);
    if (rows.size() > table.size()) print(stdout, "... and {} more (--num-entries)\n", rows.size() - table.size());
  }
  print(stdout, "\n");
}

int memory(const Common& common, MemoryOptions o) {
  for (std::string* word : {&o.group_by, &o.sort_by}) {
    std::transform(word->begin(), word->end(), word->begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  }
  auto cluster = connect_cluster(common);
  if (!cluster) return failed(common, cluster.error());
  const auto reported = inspect_nodes(*cluster, actors::Inspect::What::kObjects);
  if (!reported) return failed(common, reported.error());
  std::map<std::string, std::vector<json>> groups;
  if (o.group_by == "NODE_ADDRESS") {
    for (const auto& n : nodes_json(*reported)) groups.try_emplace(group_of(n, o.group_by));
  }
  for (const auto& row : object_rows(*reported)) groups[group_of(row, o.group_by)].push_back(row);
  for (auto& [name, rows] : groups) sort_rows(rows, o.sort_by);
  if (common.json) {
    json out = json::array();
    for (const auto& [name, rows] : groups) {
      const Sums sums = sums_of(rows);
      json shown = rows;
      if (o.limit > 0 && shown.size() > o.limit) shown.erase(shown.begin() + static_cast<std::ptrdiff_t>(o.limit), shown.end());
      json group = {{"group", name}, {"objects", sums.objects}, {"bytes", sums.bytes}, {"spilled_bytes", sums.spilled}};
      group["references"] = sums.references;
      if (!o.stats_only) group["rows"] = shown;
      out.push_back(std::move(group));
    }
    const json all = {{"schema", "shoal.memory/1"},
                      {"groups", out},
                      {"nodes", nodes_json(*reported)},
                      {"left_out", reported->left_out},
                      {"silent", silent_rows(*reported)}};
    print_json(all);
    return kOk;
  }
  print(stdout, "Objects by {}, sorted by {}\n\n", o.group_by, o.sort_by);
  for (const auto& [name, rows] : groups) print_group(name, rows, o);
  for (const auto& n : reported->nodes) {
    print(stdout, "node {}: {} of memory kept for large values, {} in files, limit {}\n", to_string(n.node), bytes_text(n.kept_bytes),
          bytes_text(n.spilled_bytes), n.limit_bytes ? bytes_text(n.limit_bytes) : "none");
  }
  for (const auto& line : silent_lines(*reported)) print(stderr, "shoal: {}\n", line);
  return kOk;
}

}  // namespace

void add_memory(CommandLine& line) {
  auto& options = line.own<MemoryOptions>();
  auto* verb = line.add_verb("memory", "List objects with the processes that hold them, and the memory that they take on each node");
  verb->add_option("--group-by", options.group_by, "Key by which the rows are grouped")
      ->check(CLI::IsMember({"NODE_ADDRESS", "JOB", "PROCESS"}, CLI::ignore_case))
      ->capture_default_str();
  verb->add_option("--sort-by", options.sort_by, "Key by which the rows of a group are sorted")
      ->check(CLI::IsMember({"OBJECT_SIZE", "PID", "REFERENCE_TYPE"}, CLI::ignore_case))
      ->capture_default_str();
  verb->add_option("-n,--num-entries", options.limit, "Maximum number of rows of each group; 0 shows all")->capture_default_str();
  verb->add_flag("--stats-only", options.stats_only, "Show only the sums");
  line.on_run(verb, [&options](const Common& common) { return memory(common, options); });
}

}  // namespace shoal::scheduler::cli
