// scale: changes the number of workers of an elastic training.
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/verbs/python_module.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {
namespace {

struct ScaleOptions {
  std::string job;  // submission id or job id
  int workers = 0;
};

}  // namespace

void add_scale(CommandLine& line) {
  auto& options = line.own<ScaleOptions>();
  auto* verb = line.add_verb("scale", "Change the number of workers of an elastic training, and wait until they train together");
  verb->add_option("job", options.job, "The job's submission id or id; `shoal list jobs` shows both")->required()->check(not_empty());
  verb->add_option("--workers", options.workers, "New number of workers of the training")->required()->check(CLI::Range(1, 1'000'000));
  line.on_run(verb, [&options](const Common& common) {
    return run_on_training(common, options.job, "shoal.train._scale_command", {std::to_string(options.workers)});
  });
}

}  // namespace shoal::scheduler::cli
