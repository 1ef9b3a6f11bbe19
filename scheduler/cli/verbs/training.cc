#include "scheduler/cli/verbs/training.h"

#include "scheduler/cli/python_module.h"
#include "scheduler/cli/verbs/job.h"

namespace shoal::scheduler::cli {

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
