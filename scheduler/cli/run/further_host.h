// A further host of a run: it joins the first host's cluster, and ends with the script's exit code.
#pragma once

#include "scheduler/cli/run/run_host.h"

namespace shoal::scheduler::cli {

// Returns the exit code.
int run_further_host(const RunHost& host);

}  // namespace shoal::scheduler::cli
