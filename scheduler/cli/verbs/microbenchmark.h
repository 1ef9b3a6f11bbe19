// microbenchmark: runs in Python, as most figures measure calls between Python processes.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct MicrobenchmarkOptions {
  std::string filter;  // substring of the figures' names
  double seconds = 1;  // time per figure
};
// Replaces this process by Python's benchmark; returns only on failure.
int microbenchmark(const Common& common, const MicrobenchmarkOptions& options);

void add_microbenchmark(CommandLine& line);

}  // namespace shoal::scheduler::cli
