// The script that sbatch takes for a run under Slurm.
#pragma once

#include <string>

#include "scheduler/cli/launch/request.h"

namespace shoal::scheduler::cli {

// `request`: from complete().
std::string batch_script(const LaunchRequest& request);

}  // namespace shoal::scheduler::cli
