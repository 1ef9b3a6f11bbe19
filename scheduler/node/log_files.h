// The files of a session's logs, as people read them: by their names, and never anything outside of that folder.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "runtime/core/result.h"

namespace shoal::scheduler {

// Names of ordinary files, sorted; at most kMaxLogFiles of them.
inline constexpr std::size_t kMaxLogFiles = 10'000;
std::vector<std::string> log_files(const std::string& folder);

// The last `bytes` of one. InvalidArgument for what is no name of a file there, NotFound.
Result<std::string> read_log_file(const std::string& folder, const std::string& name, std::size_t bytes);

// Of what processes of a role have left (ROLE-PID.log), those beyond the last `keep` are removed, but for those of processes that live:
// a head that is started again and again would fill the disk.
void forget_role_logs(const std::string& folder, const std::string& role, const std::set<pid_t>& living, std::size_t keep);

}  // namespace shoal::scheduler
