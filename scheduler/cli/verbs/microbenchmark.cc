// microbenchmark: runs in Python, as most figures measure calls between Python processes.

#include <string>
#include <vector>

#include <fmt/format.h>

#include "scheduler/cli/command_line.h"
#include "scheduler/cli/verbs/python_module.h"
#include "scheduler/cli/verbs/verbs.h"

namespace shoal::scheduler::cli {

namespace {

struct MicrobenchmarkOptions {
  std::string filter;  // substring of the figures' names
  double seconds = 1;  // time per figure
};

// Replaces this process by Python's benchmark; returns only on failure.
int microbenchmark(const Common& common, const MicrobenchmarkOptions& options) {
  std::vector<std::string> words = {"--filter", options.filter, "--seconds", fmt::format("{}", options.seconds)};
  if (common.json) words.push_back("--json");
  return become_python_module(common, "shoal._microbenchmark", words);
}

}  // namespace

void add_microbenchmark(CommandLine& line) {
  auto& options = line.own<MicrobenchmarkOptions>();
  auto* verb =
      line.add_verb_without_cluster("microbenchmark", "Measure calls and objects per second on this machine, in a private cluster");
  verb->add_option("--filter", options.filter, "Measure only figures whose names contain this text");
  verb->add_option("--seconds", options.seconds, "Seconds per figure")->capture_default_str()->check(CLI::Range(0.01, 600.0));
  line.on_run(verb, [&options](const Common& common) { return microbenchmark(common, options); });
}

}  // namespace shoal::scheduler::cli
