// The critical path of a step: what its end waited for, rank by rank. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/telemetry/rows.h"

namespace shoal::scheduler::runs {

// The spans of one rank, in microseconds of a time that all lanes share.
struct Lane {
  std::vector<runtime::Span> spans;
};

struct PathPart {
  std::size_t lane = 0;
  std::int64_t from_us = 0, length_us = 0;
  runtime::Activity activity = runtime::Activity::kElsewhere;
};

// From the step's begin to its end. A rank that waits hands the path to the rank that came last to the same exchange (activity and unit);
// a wait for which no rank came later is the exchange itself, and stays in the path.
std::vector<PathPart> critical_path(const std::vector<Lane>& lanes);

}  // namespace shoal::scheduler::runs
