// The exit code of a job, if the job's row knows it.
#pragma once

#include <optional>

#include "actors/protocol/cluster/rows.h"

namespace shoal::actors {

// Returns the exit code of a job that has ended, else nullopt. Also nullopt for a driver that has joined by itself and left in order: only
// its parent process knows that code.
inline std::optional<std::int32_t> known_exit_code(const JobRow& row) {
  const bool left_in_order = row.state == JobState::kSucceeded && row.submission.id.empty() && row.driver_pid != 0;
  return ended(row.state) && !left_in_order ? std::optional(row.exit_code) : std::nullopt;
}

}  // namespace shoal::actors
