// Checks of the metrics that a process reports. One sample that Prometheus cannot read costs the whole cluster's scrape, so the node checks
// them all. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/cluster/metrics.h"

namespace shoal::scheduler {

inline constexpr std::size_t kMaxReportedSeries = 4'000;        // per process; each bucket of a histogram is one
inline constexpr std::size_t kMaxLabelBytes = 1024;             // per sample, names and values together
inline constexpr std::size_t kMaxReportedLabelBytes = 1 << 20;  // per process

// Leaves in `families` only metrics of users and of tasks, with names, boundaries and labels that Prometheus reads. Each label occurs once,
// is UTF-8, and is none that nodes or the head add. Sorts labels by name. Returns the number of samples removed.
std::size_t leave_unreadable(std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler
