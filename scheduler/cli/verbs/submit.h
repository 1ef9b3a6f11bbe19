// submit: runs a script or command as a job, shows its output here and exits with its code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

struct SubmitOptions {
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD
  bool command = false;            // given after --
  std::uint32_t num_workers = 0;
  double num_cpus = -1, num_gpus = 0;
  std::vector<std::string> resources;
  bool wait = false;
  std::string name;
  std::vector<std::string> metadata;  // NAME=VALUE
  double detach_after_s = 3;          // after the first Ctrl-C: time for a second one, which stops the job
  std::string cwd;
};
int submit(const Common& common, const SubmitOptions& options);

// The warning that a job cannot read what lies on this command's stdin: a job may run on another host, and its own stdin is empty.
class StdinWarning {
 public:
  // Warns if there is something to read now, and has not been before. Data may arrive late: check again when the job has ended.
  void check();

 private:
  bool shown_ = false;
};

// Prints the job's output until the job ends, and returns its row; nullopt if a signal ended the watching.
Result<std::optional<actors::JobRow>> follow_job(const Common& common, Context& context, Client& head, JobId job);

}  // namespace shoal::scheduler::cli
