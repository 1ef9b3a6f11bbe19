// CPUs that this process may use: limited by the machine, its affinity, its control groups (a container), and a batch system.
#pragma once

#include <optional>
#include <string>

namespace shoal::runtime {

// Returns the smallest quota of the process's control group and its ancestors, in CPUs: `docker --cpus`, a limit of Kubernetes. Versions 1
// and 2. nullopt: there is no quota. `root`: root of the file system, for tests.
std::optional<double> cpu_quota(const std::string& root = "");

// Returns the number of CPUs, 1 or more: those of sched_getaffinity, or fewer if the quota, rounded down, or $SLURM_CPUS_ON_NODE is less.
int usable_cpus(const std::string& root = "");

}  // namespace shoal::runtime
