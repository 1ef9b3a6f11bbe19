// summary: the number of rows in each state.
#include <map>
#include <string>
#include <vector>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/inspection/listing.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

int summary(const Common& common, const std::string& name) {
  const auto listed = rows_of(common, name);
  if (!listed) return failed(common, listed.error());
  std::map<std::pair<std::string, std::string>, std::size_t> counts;  // by kind or name, and state
  // Fields by which rows are counted: `names` has the field that comes before the state, `states` the field that replaces it.
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

}  // namespace

void add_summary(CommandLine& line) {
  auto& what = line.own<std::string>();
  auto* verb = line.add_verb("summary", "Count actors, nodes, jobs or other rows by state");
  line.set_choices(verb->add_option("what", what, kKindsOfRows)->required(), kinds_of_rows());
  line.on_run(verb, [&what](const Common& common) { return summary(common, what); });
}

}  // namespace shoal::scheduler::cli
