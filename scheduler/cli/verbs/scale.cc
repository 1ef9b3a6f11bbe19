#include "scheduler/cli/verbs/scale.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/verbs/job.h"

namespace shoal::scheduler::cli {

int scale(const Common& common, const ScaleOptions& options) {
  std::string job, address;
  {
    auto cluster = connect_cluster(common);
    if (!cluster) return failed(common, cluster.error());
    const auto row = find_job(*cluster->head, options.job);
    if (!row) return failed(common, row.error());
    if (actors::ended(row->state)) {
      return failed(common, invalid_argument("job " + options.job + " is " + to_string(row->state) + ": it has no workers any more"));
    }
    job = to_string(row->id);
    address = cluster->address;
  }
  std::vector<std::string> words = {common.python, "-m", "shoal.train._scaling", address, job, std::to_string(options.workers)};
  if (common.json) words.push_back("--json");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  return failed(common, from_errno(errno, common.python));
}

void add_scale(CommandLine& line) {
  auto& options = line.own<ScaleOptions>();
  auto* verb = line.add_verb("scale", "Change the number of workers of an elastic training, and wait until they train together");
  verb->add_option("job", options.job, "Its submission id, or its id; `shoal list jobs` shows both")->required();
  verb->add_option("--workers", options.workers, "The number that it should have")->required()->check(CLI::Range(1, 1'000'000));
  line.on_run(verb, [&options](const Common& common) { return scale(common, options); });
}

}  // namespace shoal::scheduler::cli
