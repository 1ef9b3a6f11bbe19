// submit: runs a script or command as a job, shows its output here and exits with its code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct SubmitOptions {
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD
  bool command = false;            // given after --
  std::uint32_t num_workers = 0;
  double num_cpus = -1, num_gpus = 0;
  std::vector<std::string> resources;
  bool wait = false;
  std::string name;
  double detach_after_s = 3;  // after the first Ctrl-C: time for a second one, which stops the job
  std::string cwd;
};
int submit(const Common& common, const SubmitOptions& options);

// Prints the job's output until the job ends, and returns its row; nullopt if a signal ended the watching.
Result<std::optional<actors::JobRow>> follow_job(const Common& common, Context& context, Client& head, JobId job);

void add_submit(CommandLine& line);

}  // namespace shoal::scheduler::cli
