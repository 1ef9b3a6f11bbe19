// Logging with spdlog: one line per state transition, `key=value`, ids first; no logging on the data path.
//
// main() makes a Log, and passes it to the objects that log. Levels: error for bugs in Shoal, warn for conditions that users should see,
// info for state transitions.
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace shoal::runtime {

using Log = std::shared_ptr<spdlog::logger>;

// Logs to a file that rotates at max_bytes; one older file is kept.
Result<Log> make_file_log(const std::string& name, const std::string& path, std::size_t max_bytes = 16u << 20);
// Logs warnings and errors to stderr: for libraries inside a user's process.
Log make_stderr_log(const std::string& name);
// Discards everything: for tests and, by default, the simulated world.
Log make_null_log();

}  // namespace shoal::runtime
