// How much memory this process may use: what the machine has, or what its control groups (a container's, a batch job's) leave it.
#pragma once

#include <sys/types.h>

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

// What ends with a process: the proportional share of the memory that it and its children map (where that cannot be read, all of it). 0:
// there is none.
std::uint64_t process_memory(pid_t pid, const std::string& root = "");

// How many processes the kernel has killed for want of memory: in this process's control group, where one counts them, or on this machine.
std::uint64_t kernel_oom_kills(const std::string& root = "");

}  // namespace shoal::runtime
