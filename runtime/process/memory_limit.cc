#include "runtime/process/memory_limit.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/process/control_groups.h"

namespace shoal::runtime {

namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
// A limit from this number on is none: version 1 has such a number where version 2 has "max".
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

// Returns kNone for "max" and for a missing file.
std::uint64_t number_in(const std::string& file) {
  std::ifstream in(file);
  std::uint64_t out = 0;
  return in >> out ? out : kNone;
}

// Returns fields of a file with lines "name number". Reads it once, because the kernel may sum a whole tree of groups for each read.
std::array<std::uint64_t, 2> fields_of(const std::string& file, const std::array<const char*, 2>& wanted) {
  std::array<std::uint64_t, 2> out = {kNone, kNone};
  std::ifstream in(file);
  std::string name;
  for (std::uint64_t number = 0; in >> name >> number; in.ignore(100, '\n')) {
    for (std::size_t k = 0; k < wanted.size(); ++k) {
      if (name == wanted[k]) out[k] = number;
    }
  }
  return out;
}

struct Controller {
  const char *limit, *usage, *inactive, *active;  // two file names, two fields of memory.stat
};
constexpr Controller kVersion2 = {"/memory.max", "/memory.current", "inactive_file", "active_file"};
constexpr Controller kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file", "total_active_file"};

void limit_by(MachineMemory& memory, const std::string& folder, const Controller& names) {
  const std::uint64_t limit = number_in(folder + names.limit);
  if (limit >= kNoLimit) return;
  memory.total = std::min(memory.total, limit);
  const std::uint64_t usage = number_in(folder + names.usage);
  if (usage == kNone) return;
  std::uint64_t files = 0;
  for (const std::uint64_t bytes : fields_of(folder + "/memory.stat", {names.inactive, names.active})) files += bytes != kNone ? bytes : 0;
  const std::uint64_t held = usage - std::min(usage, files);
  memory.available = std::min(memory.available, limit - std::min(limit, held));
}

constexpr std::size_t kMaxFamily = 1000;

// Returns the memory of one process in bytes. The relevant lines are "Name:   NUMBER kB".
std::uint64_t share_of(const std::string& folder) {
  for (const auto& [file, name] : {std::pair{"/smaps_rollup", std::string("Pss:")}, {"/status", "VmRSS:"}}) {
    std::ifstream in(folder + file);
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size(), nullptr, 10) << 10;
    }
  }
  return 0;
}

}  // namespace

MachineMemory machine_memory(const std::string& root) {
  MachineMemory out{kNone, kNone};
  const auto [total, available] = fields_of(root + "/proc/meminfo", {"MemTotal:", "MemAvailable:"});
  if (total != kNone) out.total = total << 10;
  if (available != kNone) out.available = available << 10;
  for (const auto& group : control_groups("memory", root)) {
    visit_folders(group, [&](const std::string& folder) {
      limit_by(out, folder, group.version2 ? kVersion2 : kVersion1);
      return false;
    });
  }
  out.available = std::min(out.available, out.total);
  if (out.total == kNone) out.total = 0;
  return out;
}

std::uint64_t process_memory(pid_t pid, const std::string& root) {
  std::uint64_t out = 0;
  std::vector<pid_t> family = {pid};
  for (std::size_t i = 0; i < family.size(); ++i) {
    const std::string folder = root + "/proc/" + std::to_string(family[i]);
    out += share_of(folder);
    std::error_code ended;
    for (std::filesystem::directory_iterator task(folder + "/task", ended), end; !ended && task != end; task.increment(ended)) {
      std::ifstream children(task->path() / "children");
      for (pid_t child = 0; family.size() < kMaxFamily && children >> child;) family.push_back(child);
    }
  }
  return out;
}

std::uint64_t kernel_oom_kills(const std::string& root) {
  std::uint64_t kills = kNone;
  for (const auto& group : control_groups("memory", root)) {
    visit_folders(group, [&](const std::string& folder) {
      kills = fields_of(folder + (group.version2 ? "/memory.events" : "/memory.oom_control"), {"oom_kill", ""})[0];
      return kills != kNone;
    });
    if (kills != kNone) return kills;
  }
  kills = fields_of(root + "/proc/vmstat", {"oom_kill", ""})[0];
  return kills == kNone ? 0 : kills;
}

}  // namespace shoal::runtime
