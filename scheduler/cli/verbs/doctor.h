// doctor: checks this machine and prints a fix for each finding.
#pragma once

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

int doctor(const Common& common);

void add_doctor(CommandLine& line);

}  // namespace shoal::scheduler::cli
