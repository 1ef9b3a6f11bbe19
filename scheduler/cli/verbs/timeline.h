// timeline: writes the task rows as a Chrome trace.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

// `file`: "-" is stdout.
int timeline(const Common& common, const std::string& file);

void add_timeline(CommandLine& line);

}  // namespace shoal::scheduler::cli
