// summary: the number of rows in each state.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

int summary(const Common& common, const std::string& what);

void add_summary(CommandLine& line);

}  // namespace shoal::scheduler::cli
