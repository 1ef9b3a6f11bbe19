#include "scheduler/cli/runs/run_choice.h"

#include <filesystem>

#include <fmt/format.h>

#include "scheduler/cli/suggestion/suggestion.h"
#include "scheduler/runs/run_reader.h"

namespace shoal::scheduler::cli {

std::vector<std::string> run_roots(const std::string& root) {
  std::error_code error;
  return {(std::filesystem::current_path(error) / "shoal-run").string(), root + "/runs"};
}

Result<std::string> find_run(const std::string& name, const std::vector<runs::ListedRun>& listed) {
  if (name.empty()) {
    if (listed.empty()) return fail(not_found("there is no run").with_hint("`shoal run train.py` makes one (docs/runs.md)"));
    return listed[0].path;
  }
  std::vector<std::string> found, names;
  for (const auto& run : listed) {
    names.push_back(run.name);
    if (run.name == name) found.push_back(run.path);
  }
  if (found.size() == 1) return found[0];
  if (found.size() > 1) {
    return fail(invalid_argument(fmt::format("{} runs have the name {}", found.size(), name))
                    .with_reason("Usage")
                    .with_hint("name one by its folder: " + found[0]));
  }
  if (runs::is_run_folder(name)) return name;
  std::error_code error;
  if (std::filesystem::exists(name, error))
    return fail(not_found(name + " is no run's folder: it has neither processes/ nor exit.json").with_hint("`shoal ls` lists the runs"));
  const auto meant = nearest(name, names);
  return fail(
      not_found("there is no run " + name)
          .with_hint((meant.empty() ? "" : "did you mean " + meant + "? ") + "`shoal ls` lists the runs; a run of elsewhere has a path"));
}

}  // namespace shoal::scheduler::cli
