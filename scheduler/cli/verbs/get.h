// get, describe: one row of a cluster's state.
#pragma once

#include <string>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

struct GetOptions {
  std::string what, id;
  std::string format;  // json, yaml
};
int get(const Common& common, const GetOptions& options);
// Prints one row for people: also why it waits or ended, and the command to use next.
int describe(const Common& common, const GetOptions& options);

void add_get(CommandLine& line);
void add_describe(CommandLine& line);

}  // namespace shoal::scheduler::cli
