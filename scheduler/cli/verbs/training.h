// Commands that run in Python, because the driver of a training takes calls in Python.
#pragma once

#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// Replaces this process by the Python module, with the cluster's address, the job's id and `words` as arguments, once the head has the job
// and it has not ended. Returns only on failure.
int run_on_training(const Common& common, const std::string& job, const std::string& module, const std::vector<std::string>& words);

}  // namespace shoal::scheduler::cli
