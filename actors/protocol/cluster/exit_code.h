// The exit code that the row of a job has, or lacks.
#pragma once

#include <optional>

#include "actors/protocol/cluster/rows.h"

namespace shoal::actors {

// Returns the exit code of a job that has ended. The code of a driver that has joined by itself and left in order is known to its parent
// alone: the row has its state, and nothing here.
inline std::optional<std::int32_t> known_exit_code(const JobRow& row) {
  const bool left_in_order = row.state == JobState::kSucceeded && row.submission.id.empty() && row.driver_pid != 0;
  return ended(row.state) && !left_in_order ? std::optional(row.exit_code) : std::nullopt;
}

}  // namespace shoal::actors
