// stack: the Python stacks of this host's workers.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

// Prints the stacks of the worker, actor, job or process `id`; of all workers for "".
int stack(const Common& common, const std::string& id);

void add_stack(CommandLine& line);

}  // namespace shoal::scheduler::cli
