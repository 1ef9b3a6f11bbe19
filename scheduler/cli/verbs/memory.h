// memory: the holders of objects, and the memory that objects take on each node.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct MemoryOptions {
  std::string group_by = "NODE_ADDRESS", sort_by = "OBJECT_SIZE";
  std::size_t limit = 100;  // rows of each group; 0: all
  bool stats_only = false;
};
int memory(const Common& common, MemoryOptions options);

void add_memory(CommandLine& line);

}  // namespace shoal::scheduler::cli
