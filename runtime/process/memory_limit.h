// Memory that this process may use: limited by the machine and by its control groups (a container, a batch job).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace shoal::runtime {

struct MachineMemory {
  std::uint64_t total = 0, available = 0;  // bytes; a total of 0: unknown
};

// Returns the minimum over /proc/meminfo and the memory controllers (version 1 and 2) of the process's control group and its ancestors.
// Cached file pages of a group count as available. Unreadable files impose no limit. `root`: root of the file system, for tests.
MachineMemory machine_memory(const std::string& root = "");

// Returns the bytes of memory of a process and its descendants: its PSS or, where unreadable, its RSS. 0: no such process.
std::uint64_t process_memory(pid_t pid, const std::string& root = "");

// Returns the number of processes that the kernel's OOM killer has killed: in this control group if it has a counter, else on this machine.
std::uint64_t kernel_oom_kills(const std::string& root = "");

}  // namespace shoal::runtime
