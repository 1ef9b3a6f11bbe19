// Measurements of a cluster as Prometheus reads them: its text format, version 0.0.4. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "runtime/core/id.h"

namespace shoal::scheduler::web {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

struct NodeMetrics {
  NodeId node;
  std::string host;
  std::optional<std::vector<actors::MetricFamily>> families;  // none: it did not answer in time
};
// One family per name, by name; samples of a node with its id and host. With what asking took, and who was silent.
std::vector<actors::MetricFamily> of_cluster(const std::vector<actors::MetricFamily>& of_head, const std::vector<NodeMetrics>& of_nodes,
                                             double seconds);

// In the order given, but for families without samples. Levels are gauges; buckets of histograms are cumulative, as Prometheus has them.
std::string exposition(const std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler::web
