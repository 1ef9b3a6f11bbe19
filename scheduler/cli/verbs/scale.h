// scale: changes the number of workers of an elastic training. It runs in Python, because the training's driver takes a call in Python.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct ScaleOptions {
  std::string job;  // submission id or job id
  int workers = 0;
};
// Replaces this process by Python's command once the head has the job; returns only on failure.
int scale(const Common& common, const ScaleOptions& options);

void add_scale(CommandLine& line);

}  // namespace shoal::scheduler::cli
