// status: the cluster's state and its addresses.
#pragma once

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

// `verbose` adds a row per node.
int status(const Common& common, bool verbose);

void add_status(CommandLine& line);

}  // namespace shoal::scheduler::cli
