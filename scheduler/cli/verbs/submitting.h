// Steps of job submission that run in Python (python/shoal/_submitting.py): reading YAML and packing a folder.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// Runs the module with `words` and returns its stdout without trailing newlines. On failure: InvalidArgument with its last stderr line.
// DeadlineExceeded after ten minutes; Python is killed then.
Result<std::string> ask_python(const Common& common, const std::vector<std::string>& words);

// A cluster over several hosts may run the job on another host: working_dir is uploaded to the head, and _entrypoint.py unpacks it there.
// `store`: the folder in which this host's session keeps unpacked folders.
Result<void> ship_folder(const Common& common, const std::string& store, Client& head, const std::string& runtime_env,
                         actors::JobSpec& spec);

}  // namespace shoal::scheduler::cli
