// Reads the log files of a session by their names, and nothing outside of their folder.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::scheduler {

// The names of the regular files in the folder, sorted; at most kMaxLogFiles.
inline constexpr std::size_t kMaxLogFiles = 10'000;
std::vector<std::string> log_files(const std::string& folder);

// The last `bytes` of a file. Returns InvalidArgument if `name` cannot be the name of a file in the folder, NotFound if there is no such
// file.
Result<std::string> read_log_file(const std::string& folder, const std::string& name, std::size_t bytes);

// Removes the logs of ended processes of a role (ROLE-PID.log), except for the last `keep`. Without this, a head that is started again and
// again would fill the disk.
void forget_role_logs(const std::string& folder, const std::string& role, const std::set<pid_t>& living, std::size_t keep);

}  // namespace shoal::scheduler
