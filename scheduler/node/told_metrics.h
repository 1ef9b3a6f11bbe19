// What a process may tell of its measurements. One sample that Prometheus cannot read costs it the whole cluster's, so whatever speaks to a
// node is checked there. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "actors/cluster/metrics.h"

namespace shoal::scheduler {

inline constexpr std::size_t kMaxToldSeries = 4'000;        // of a process; each bucket of a histogram is one
inline constexpr std::size_t kMaxLabelBytes = 1024;         // of a sample's names and values together
inline constexpr std::size_t kMaxToldLabelBytes = 1 << 20;  // of a process

// Leaves in `families` only metrics of users and those of tasks, with names, boundaries and labels as Prometheus reads them: each label
// once, none that nodes and the head give, UTF-8. Labels are by name then. How many samples went.
std::size_t leave_unreadable(std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler
