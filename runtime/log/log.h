// Logging: spdlog, one line per state transition, `key=value`, ids first; none on the data path.
//
// A Log is passed down from main like everything else. Levels: error means a bug of ours, warn is for people, info for
// state transitions.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace shoal::runtime {

using Log = std::shared_ptr<spdlog::logger>;

// To a file that is cut at max_bytes and kept in two generations.
Result<Log> make_file_log(const std::string& name, const std::string& path, std::size_t max_bytes = 16u << 20);
// To stderr, from warnings up: for libraries inside a user's process.
Log make_stderr_log(const std::string& name);
// To nowhere: tests, and the simulated world unless asked.
Log make_null_log();

}  // namespace shoal::runtime
