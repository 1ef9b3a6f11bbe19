#include "runtime/process/cpu_limit.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "runtime/process/control_groups.h"

namespace shoal::runtime {

namespace {

// Version 2 has both numbers in one file, or "max" for no quota. Version 1 has -1 for no quota.
std::optional<double> quota_of(const std::string& folder, bool version2) {
  double quota = 0, period = 0;
  if (version2) {
    std::ifstream both(folder + "/cpu.max");
    both >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (!(quota > 0 && period > 0)) return std::nullopt;
  return quota / period;
}

}  // namespace

std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> out;
  for (const auto& group : control_groups("cpu", root)) {
    visit_folders(group, [&](const std::string& folder) {
      const auto quota = quota_of(folder, group.version2);
      if (quota && (!out || *quota < *out)) out = quota;
      return false;
    });
  }
  return out;
}

int usable_cpus(const std::string& root) {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const auto quota = cpu_quota(root); quota && *quota < cpus) cpus = static_cast<int>(*quota);
  const char* const batch = std::getenv("SLURM_CPUS_ON_NODE");
  if (const int allocated = batch != nullptr ? std::atoi(batch) : 0; allocated > 0) cpus = std::min(cpus, allocated);
  return std::max(cpus, 1);
}

}  // namespace shoal::runtime
