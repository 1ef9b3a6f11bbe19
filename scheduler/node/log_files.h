// The log files of a session, by name, and nothing outside of their folder.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::scheduler {

// Names of regular files, sorted; at most kMaxLogFiles.
inline constexpr std::size_t kMaxLogFiles = 10'000;
std::vector<std::string> log_files(const std::string& folder);

// The last `bytes` of a file. Returns InvalidArgument for a text that is no file name, NotFound if there is no such file.
Result<std::string> read_log_file(const std::string& folder, const std::string& name, std::size_t bytes);

// Removes the logs that a role's processes have left (ROLE-PID.log), except for the last `keep` and those of living processes. A head that
// is started again and again would fill the disk.
void forget_role_logs(const std::string& folder, const std::string& role, const std::set<pid_t>& living, std::size_t keep);

}  // namespace shoal::scheduler
