// Commands that a module of the package shoal answers in Python.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

// The beginning of a command line that runs `module` as `python -m` does, except that it imports nothing from the working directory: that
// may hold somebody else's files, and one named json.py would run instead of Python's.
std::vector<std::string> python_module(const Common& common, std::string_view module);

// Replaces this process by `module` with these words. Returns only on failure, with the exit code.
int become_python_module(const Common& common, std::string_view module, const std::vector<std::string>& words);

// The same for a module that the driver of a training answers, with the cluster's address and the job's id before `words`, once the head
// has the job and it has not ended. Returns only on failure.
int run_on_training(const Common& common, const std::string& job, const std::string& module, const std::vector<std::string>& words);

}  // namespace shoal::scheduler::cli
