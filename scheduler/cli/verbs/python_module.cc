#include "scheduler/cli/verbs/python_module.h"

#include <unistd.h>

#include <cerrno>

#include <fmt/format.h>

#include "scheduler/cli/verbs/job.h"

namespace shoal::scheduler::cli {

std::vector<std::string> python_module(const Common& common, std::string_view module) {
  // Python 3.10 has no option -P. The empty entry of sys.path is the working directory.
  return {common.python, "-c",
          fmt::format("import sys; sys.path[:] = [p for p in sys.path if p]; import runpy; "
                      "runpy.run_module('{}', run_name='__main__', alter_sys=True)",
                      module)};
}

int become_python_module(const Common& common, std::string_view module, const std::vector<std::string>& words) {
  auto line = python_module(common, module);
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (auto& word : line) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return failed(common, from_errno(errno, common.python));
}

int run_on_training(const Common& common, const std::string& job, const std::string& module, const std::vector<std::string>& words) {
  std::vector<std::string> line;
  {
    auto cluster = connect_cluster(common);
    if (!cluster) return failed(common, cluster.error());
    const auto row = find_job(*cluster->head, job);
    if (!row) return failed(common, row.error());
    if (actors::ended(row->state)) {
      return failed(common, invalid_argument("job " + job + " is " + to_string(row->state) + ": it has no workers any more"));
    }
    line.push_back(cluster->address);
    line.push_back(to_string(row->id));
  }
  line.insert(line.end(), words.begin(), words.end());
  if (common.json) line.push_back("--json");
  return become_python_module(common, module, line);
}

}  // namespace shoal::scheduler::cli
