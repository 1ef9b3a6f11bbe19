// The script that starts a run on named hosts through ssh.
#pragma once

#include <string>

#include "scheduler/cli/launch/request.h"

namespace shoal::scheduler::cli {

// `request`: from complete().
std::string ssh_script(const LaunchRequest& request);

}  // namespace shoal::scheduler::cli
