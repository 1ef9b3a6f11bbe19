// Logging with spdlog: one line per state transition, `key=value`, ids first; no logging on the data path.
//
// main() makes a Log, and passes it to the objects that log. Levels: error for bugs in Shoal, warn for conditions that users should see,
// info for state transitions. Messages hold names and texts of other processes: control characters are escaped, and a message's further
// lines begin with "  | ", so that none is taken for an entry (core/printable.h).
#pragma once

#include <spdlog/logger.h>

#include <memory>
#include <string>

#include "runtime/core/result.h"

namespace shoal::runtime {

using Log = std::shared_ptr<spdlog::logger>;

// Logs to a file that rotates at max_bytes; one older file is kept.
Result<Log> make_file_log(const std::string& name, const std::string& path, std::size_t max_bytes = 16u << 20);
// Discards everything: for tests and, by default, the simulated world.
Log make_null_log();

}  // namespace shoal::runtime
