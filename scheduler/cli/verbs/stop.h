// stop: ends a cluster, or what it has on this host.
#pragma once

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct StopOptions {
  bool all = false;
  double grace_s = 5;
  bool force = false;  // kill at once
};
int stop(const Common& common, const StopOptions& options);

void add_stop(CommandLine& line);

}  // namespace shoal::scheduler::cli
