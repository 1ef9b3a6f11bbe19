#include "scheduler/web/exposition.h"

#include <limits>

#include <gtest/gtest.h>

namespace shoal::scheduler::web {
namespace {

using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;

TEST(ExpositionTest, IsWhatPrometheusReads) {
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

TEST(ExpositionTest, ANodesSamplesHaveItsIdAndHost) {
  const auto of_node = [](double n) { return std::vector<MetricFamily>{FamilyOf(MetricKind::kGauge, "load", "Of a node.").add(n)}; };
  const auto text =
      exposition(of_cluster({FamilyOf(MetricKind::kGauge, "jobs", "Of the head.").add(2)},
                            {{NodeId{1}, "10.0.0.1", of_node(0.5)}, {NodeId{2}, "10.0.0.2", of_node(4)}, {NodeId{3}, "x", {}}}, 0.25));
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
# HELP shoal_scrape_left_out_series Series that do not go with those of other nodes: several kinds or boundaries under one name.
# TYPE shoal_scrape_left_out_series gauge
shoal_scrape_left_out_series 0
# HELP shoal_scrape_silent_nodes Nodes that did not answer this scrape in time: all their series are missing.
# TYPE shoal_scrape_silent_nodes gauge
shoal_scrape_silent_nodes 1
)");
}

TEST(ExpositionTest, WhatNodesMeanDifferentlyIsLeftOut) {
  const std::vector<MetricFamily> one = {FamilyOf(MetricKind::kGauge, "x", "").add(1)};
  const std::vector<MetricFamily> other = {FamilyOf(MetricKind::kCounter, "x", "").add(1)};
  const auto text = exposition(of_cluster({}, {{NodeId{1}, "a", one}, {NodeId{2}, "b", other}}, 0));
  EXPECT_NE(text.find("# TYPE x gauge\nx{host=\"a\",node=\"0000000000000001\"} 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("shoal_scrape_left_out_series 1\n"), std::string::npos);
}

}  // namespace
}  // namespace shoal::scheduler::web
