// Steps of job submission that run in Python (python/shoal/_submitting.py): reading YAML and packing a folder.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// Runs the module with `words` and returns its stdout without trailing newlines. Returns InvalidArgument with the last line of its stderr
// if it fails, and DeadlineExceeded after ten minutes, when Python is killed.
Result<std::string> run_python(const Common& common, const std::vector<std::string>& words);

// Uploads the job's working_dir to the head, because a cluster over several hosts may run the job on another host. There
// python/shoal/_entrypoint.py unpacks it. `store`: the folder in which this host's session keeps unpacked folders.
Result<void> ship_folder(const Common& common, const std::string& store, Client& head, const std::string& runtime_env,
                         actors::JobSpec& spec);

}  // namespace shoal::scheduler::cli
