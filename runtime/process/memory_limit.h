// How much memory this process may use: what the machine has, or what its control groups (a container's, a batch job's) leave it.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::runtime {

struct MachineMemory {
  std::uint64_t total = 0, available = 0;  // bytes; a total of 0 is not known
};

// The least of what /proc/meminfo and the memory controllers of control groups say, of version 2 and 1, of the process's group and those
// around it. Pages of files that a group has read count as available. `root`: of the file system, for tests. What cannot be read is taken
// to be without a limit.
MachineMemory machine_memory(const std::string& root = "");

}  // namespace shoal::runtime
