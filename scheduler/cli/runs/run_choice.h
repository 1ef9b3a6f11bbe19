// The run that a command means: a name that `shoal ls` lists, or a path.
#pragma once

#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "scheduler/runs/run_list.h"

namespace shoal::scheduler::cli {

// The folders of runs: ./shoal-run, and runs below $SHOAL_HOME (`root`).
std::vector<std::string> run_roots(const std::string& root);

// The folder of the run `name`. Returns NotFound if there is none, with the nearest name; InvalidArgument if several folders have it.
Result<std::string> find_run(const std::string& name, const std::vector<runs::ListedRun>& listed);

}  // namespace shoal::scheduler::cli
