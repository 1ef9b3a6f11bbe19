// Metrics of a cluster in Prometheus' text format, version 0.0.4. Pure.
#pragma once

#include <string>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "runtime/core/id.h"

namespace shoal::scheduler::web {

inline constexpr const char* kExpositionType = "text/plain; version=0.0.4; charset=utf-8";

// Sums the reports of head and nodes as they arrive; a node's samples get its id and host as labels. At most `max_user_series` series of
// user metrics are kept. Further ones are left out and counted, as are series of another kind than earlier ones of the same name.
class ClusterMetrics {
 public:
  static constexpr std::size_t kMaxUserSeries = 200'000;

  explicit ClusterMetrics(std::size_t max_user_series = kMaxUserSeries) : of_users_(max_user_series) {}
  void of_head(const std::vector<actors::MetricFamily>& families);
  void of_node(NodeId node, const std::string& host, const std::vector<actors::MetricFamily>& families);
  // Counts a node that did not answer in time.
  void silent() { ++silent_; }
  // All families by name, user metrics last, with the duration of the scrape and the counts of silent nodes and left-out series.
  std::vector<actors::MetricFamily> families(double seconds);

 private:
  actors::MetricSums ours_, of_users_;
  std::size_t silent_ = 0;
};

// The text of these families, in this order. Families without samples are left out, and adjacent ones of one name become one. Levels are
// gauges; histogram buckets are cumulative, as Prometheus defines them.
std::string exposition(const std::vector<actors::MetricFamily>& families);

}  // namespace shoal::scheduler::web
