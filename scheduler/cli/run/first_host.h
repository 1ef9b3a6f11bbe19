// The first host of a run: it starts the head, waits for the others, and runs the script.
#pragma once

#include "scheduler/cli/run/run_host.h"

namespace shoal::scheduler::cli {

// Returns the exit code.
int run_first_host(const RunHost& host);

}  // namespace shoal::scheduler::cli
