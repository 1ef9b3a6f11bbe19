// Checks of the metrics that a process reports. A single sample that Prometheus cannot read makes the scrape of the whole cluster fail, so
// the node checks all. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/protocol/cluster/metrics.h"

namespace shoal::scheduler {

inline constexpr std::size_t kMaxReportedSeries = 4'000;        // limit for a process; each bucket of a histogram counts
inline constexpr std::size_t kMaxLabelBytes = 1024;             // limit for a sample, names and values together
inline constexpr std::size_t kMaxReportedLabelBytes = 1 << 20;  // limit for a process

// Removes all but metrics of user code and of tasks that have names, bounds and labels which Prometheus can read. Each label may occur
// once. It must be UTF-8, and not one that nodes or the head add. Sorts labels by name. Returns the number of removed samples.
std::size_t leave_unreadable(std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler
