// job submit, status, logs, stop, list, delete: the commands of Ray's `ray job`, by submission id.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

struct JobOptions {
  std::string id;                  // submission id or job id
  std::vector<std::string> words;  // entrypoint
  std::string submission_id, runtime_env_file, runtime_env_json, working_dir, metadata_json;
  double num_cpus = 0, num_gpus = 0, memory = 0;
  std::string resources_json;
  bool wait = true, follow = false;
  std::string cwd;  // this process's working directory
};
// Finds a job by its submission id, its id or the id's unique beginning. It fetches the whole row, because a list has only the first line
// of a cause.
Result<actors::JobRow> find_job(Client& head, const std::string& id);
int job_submit(const Common& common, const JobOptions& options);
int job_status(const Common& common, const JobOptions& options);
int job_logs(const Common& common, const JobOptions& options);
int job_stop(const Common& common, const JobOptions& options);
int job_delete(const Common& common, const JobOptions& options);

}  // namespace shoal::scheduler::cli
