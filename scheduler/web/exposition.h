// Measurements of a cluster as Prometheus reads them: its text format, version 0.0.4. Pure.
#pragma once

#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "runtime/core/id.h"

namespace shoal::scheduler::web {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// What head and nodes tell, added up as it comes: samples of a node with its id and host. Of those that users name there is room for
// `max_user_series`; what comes then is left out, and counted, as is what does not go with what came before.
class ClusterMetrics {
 public:
  static constexpr std::size_t kMaxUserSeries = 200'000;

  explicit ClusterMetrics(std::size_t max_user_series = kMaxUserSeries) : of_users_(max_user_series) {}
  void of_head(const std::vector<actors::MetricFamily>& families);
  void of_node(NodeId node, const std::string& host, const std::vector<actors::MetricFamily>& families);
  // A node that did not answer in time.
  void silent() { ++silent_; }
  // By name, those of users last; with what asking took, who was silent, and what was left out.
  std::vector<actors::MetricFamily> families(double seconds);

 private:
  actors::MetricSums ours_, of_users_;
  std::size_t silent_ = 0;
};

// In the order given, but for families without samples; those of one name follow each other, and are one here. Levels are gauges; buckets
// of histograms are cumulative, as Prometheus has them.
std::string exposition(const std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler::web
