// chaos: inflicts faults on a running elastic training (python/shoal/train/_chaos).
#include <regex>
#include <sstream>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/verbs/python_module.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {
namespace {

struct ChaosOptions {
  std::string job;  // submission id or job id
  std::uint64_t seed = 0;
  std::string rate = "4/min", duration = "10m", faults = "kill,stop";
  bool yes = false;
};

// Checks an option before the command looks at the job. The Python part reads it.
CLI::Validator like(const char* pattern, const char* what, const char* example) {
  return CLI::Validator(
      [shape = std::regex(pattern), what, example](std::string& text) {
        return std::regex_match(text, shape) ? "" : "'" + text + "' is no " + what + ": write " + example;
      },
      "");
}

CLI::Validator kinds_of_faults() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::istringstream kinds(text);
        for (std::string kind; std::getline(kinds, kind, ',');) {
          if (kind != "kill" && kind != "stop" && kind != "head") return "there is no fault '" + kind + "': write some of kill,stop,head";
        }
        return text.empty() ? "name a fault: some of kill,stop,head" : "";
      },
      "");
}

}  // namespace

void add_chaos(CommandLine& line) {
  auto& options = line.own<ChaosOptions>();
  auto* verb = line.add_verb("chaos", "Inflict faults on an elastic training at random times, and show whether it goes on");
  verb->add_option("job", options.job, "The job's submission id or id; `shoal list jobs` shows both")->required()->check(not_empty());
  verb->add_option("--seed", options.seed, "Number that decides the kinds, victims and times of the faults")->required();
  verb->add_option("--rate", options.rate, "Mean number of faults per time, such as 4/min or 10/h")
      ->capture_default_str()
      ->check(like(R"((?=.*[1-9].*/)\d+(\.\d+)?/(s|min|m|h))", "rate", "4/min or 10/h"));
  verb->add_option("--for", options.duration, "Length of the time with faults, such as 90s, 10m or 1h")
      ->capture_default_str()
      ->check(like(R"((?=.*[1-9])\d+(\.\d+)?(s|min|m|h)?)", "length of time", "90s, 10m or 1h"));
  verb->add_option("--faults", options.faults,
                   "Kinds of faults, separated by commas: kill (ends a worker's process), stop (stops it for up to 5 s), head (ends the "
                   "cluster's head)")
      ->capture_default_str()
      ->check(kinds_of_faults());
  verb->add_flag("--yes", options.yes, "Allow a training without protection, and a cluster with other jobs");
  line.on_run(verb, [&options](const Common& common) {
    std::vector<std::string> words = {std::to_string(options.seed), options.rate, options.duration, options.faults};
    if (options.yes) words.push_back("--yes");
    return run_on_training(common, options.job, "shoal.train._chaos", words);
  });
}

}  // namespace shoal::scheduler::cli
