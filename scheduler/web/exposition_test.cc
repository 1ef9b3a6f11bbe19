#include "scheduler/web/exposition.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

namespace shoal::scheduler::web {
namespace {

using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;

std::string of_cluster(ClusterMetrics& cluster, double seconds) { return exposition(cluster.families(seconds)); }

TEST(ExpositionTest, IsReadableByPrometheus) {
  const std::vector<MetricFamily> families = {
      FamilyOf(MetricKind::kCounter, "a_total", "Counts\nlines \\ and more.").add(3).add(0.5, {{"tag", "say \"x\"\\\n"}}),
      FamilyOf(MetricKind::kGauge, "b_bytes", "").add(-1.5).add(std::numeric_limits<double>::infinity(), {{"z", ""}}),
      {"c_seconds", "How long.", MetricKind::kHistogram, {0.1, 2}, {{{{"k", "v"}}, 12.25, {2, 0, 1}}}},
      FamilyOf(MetricKind::kLevel, "d", "Now.").add(4),
      FamilyOf(MetricKind::kGauge, "nobody", "has it")};
  EXPECT_EQ(exposition(families), R"(# HELP a_total Counts\nlines \\ and more.
# TYPE a_total counter
a_total 3
a_total{tag="say \"x\"\\\n"} 0.5
# TYPE b_bytes gauge
b_bytes -1.5
b_bytes{z=""} +Inf
# HELP c_seconds How long.
# TYPE c_seconds histogram
c_seconds_count{k="v"} 3
c_seconds_sum{k="v"} 12.25
c_seconds_bucket{k="v",le="0.1"} 2
c_seconds_bucket{k="v",le="2"} 2
c_seconds_bucket{k="v",le="+Inf"} 3
# HELP d Now.
# TYPE d gauge
d 4
)");
}

TEST(ExpositionTest, HasNoControlCharacters) {
  const std::vector<MetricFamily> families = {
      FamilyOf(MetricKind::kGauge, "a", "H\x1b[2J").add(1, {{"tag", std::string("x\0\x1b]0;t\a\r\u202e\u00e9", 14)}})};
  EXPECT_EQ(exposition(families), R"(# HELP a H\\x1b[2J
# TYPE a gauge
a{tag="x\\x00\\x1b]0;t\\x07\\r\\u202eé"} 1
)");
}

TEST(ExpositionTest, ANodesSamplesHaveItsIdAndHost) {
  const auto of_node = [](double n) { return std::vector<MetricFamily>{FamilyOf(MetricKind::kGauge, "load", "Of a node.").add(n)}; };
  ClusterMetrics cluster;
  cluster.of_head({FamilyOf(MetricKind::kGauge, "jobs", "Of the head.").add(2)});
  cluster.of_node(NodeId{2}, "10.0.0.2", of_node(4));
  cluster.silent();
  cluster.of_node(NodeId{1}, "10.0.0.1", of_node(0.5));
  const auto text = of_cluster(cluster, 0.25);
  EXPECT_EQ(text, R"(# HELP jobs Of the head.
# TYPE jobs gauge
jobs 2
# HELP load Of a node.
# TYPE load gauge
load{host="10.0.0.1",node="0000000000000001"} 0.5
load{host="10.0.0.2",node="0000000000000002"} 4
# HELP shoal_scrape_duration_seconds What asking head, nodes and processes took.
# TYPE shoal_scrape_duration_seconds gauge
shoal_scrape_duration_seconds 0.25
# HELP shoal_scrape_left_out_series Series that do not go with those of other nodes (several kinds under one name), or are too many.
# TYPE shoal_scrape_left_out_series gauge
shoal_scrape_left_out_series 0
# HELP shoal_scrape_silent_nodes Nodes that did not answer this scrape in time: all their series are missing.
# TYPE shoal_scrape_silent_nodes gauge
shoal_scrape_silent_nodes 1
)");
}

TEST(ExpositionTest, MetricsWithDifferentKindsAreLeftOut) {
  const std::vector<MetricFamily> one = {FamilyOf(MetricKind::kGauge, "x", "").add(1)};
  const std::vector<MetricFamily> other = {FamilyOf(MetricKind::kCounter, "x", "").add(1)};
  ClusterMetrics cluster;
  cluster.of_node(NodeId{1}, "a", one);
  cluster.of_node(NodeId{2}, "b", other);
  const auto text = of_cluster(cluster, 0);
  EXPECT_NE(text.find("# TYPE x gauge\nx{host=\"a\",node=\"0000000000000001\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("shoal_scrape_left_out_series 1\n"), std::string::npos);
}

TEST(ExpositionTest, SeveralBoundariesAreOneFamily) {
  const auto histogram = [](double bound, const char* job) {
    return MetricFamily{"shoal_user_h", "Help.", MetricKind::kHistogram, {bound}, {{{{"job_id", job}}, 0.5, {1, 0}}}};
  };
  ClusterMetrics cluster;
  cluster.of_node(NodeId{1}, "a", {histogram(1, "1"), histogram(2, "2")});
  const auto text = of_cluster(cluster, 0);
  EXPECT_EQ(text.find("# TYPE shoal_user_h histogram\n"), text.rfind("# TYPE shoal_user_h histogram\n"));
  EXPECT_NE(text.find("job_id=\"1\",node=\"0000000000000001\",le=\"1\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("job_id=\"2\",node=\"0000000000000001\",le=\"2\"} 1\n"), std::string::npos) << text;
}

TEST(ExpositionTest, UserMetricsAreBoundedAndLeaveRoomForTheRest) {
  ClusterMetrics cluster(1);
  for (std::uint64_t node = 1; node <= 3; ++node) {
    cluster.of_node(NodeId{node}, "a",
                    {FamilyOf(MetricKind::kGauge, "shoal_node_load1", "").add(1), FamilyOf(MetricKind::kGauge, "shoal_user_x", "").add(1)});
  }
  const auto families = cluster.families(0);
  const auto samples = [&](const std::string& name) {
    const auto at = std::find_if(families.begin(), families.end(), [&](const auto& f) { return f.name == name; });
    return at == families.end() ? std::vector<actors::MetricSample>() : at->samples;
  };
  EXPECT_EQ(samples("shoal_node_load1").size(), 3u);
  EXPECT_EQ(samples("shoal_user_x").size(), 1u);
  EXPECT_EQ(samples("shoal_scrape_left_out_series").at(0).value, 2);
}

}  // namespace
}  // namespace shoal::scheduler::web
