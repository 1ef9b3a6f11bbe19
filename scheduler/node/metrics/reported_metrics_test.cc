#include "scheduler/node/metrics/reported_metrics.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;
using actors::MetricSample;

MetricFamily gauge(const std::string& name, MetricSample::Labels labels = {}) {
  return FamilyOf(MetricKind::kGauge, name, "").add(1, std::move(labels));
}
std::size_t refused(MetricFamily family) {
  std::vector<MetricFamily> families = {std::move(family)};
  const auto samples = families[0].samples.size();
  const auto gone = leave_unreadable(families);
  EXPECT_EQ(families.empty(), gone == samples);
  return gone;
}
std::size_t refused_labels(MetricSample::Labels labels) {
  MetricFamily family{"shoal_user_g", "", MetricKind::kGauge, {}, {{std::move(labels), 1, {}}}};
  return refused(std::move(family));
}

TEST(ReportedMetricsTest, ReportedSamplesAreTaken) {
  const std::vector<MetricFamily> reported = {
      gauge("shoal_user_g", {{"tag", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x90\x9f"}, {"exported_node", ""}}),
      FamilyOf(MetricKind::kLevel, "shoal_tasks", "Calls.").add(2, {{"name", "f"}, {"state", "RUNNING"}}),
      {"shoal_user_h", "", MetricKind::kHistogram, {0.5, 1}, {{{}, 3, {1, 0, 2}}}}};
  auto left = reported;
  EXPECT_EQ(leave_unreadable(left), 0u);
  EXPECT_EQ(left, reported);
}

TEST(ReportedMetricsTest, AProcessReportsOnlyMetricsOfUsersAndTasks) {
  for (const char* name :
       {"shoal_node_load1", "shoal_heads", "process_open_fds", "shoal_user", "", "shoal_user_a b", "shoal_user_a\n", "shoal_tasks"}) {
    EXPECT_EQ(refused(gauge(name)), 1u) << name;  // refused, since shoal_tasks is not a gauge
  }
  EXPECT_EQ(refused(gauge("shoal_user_" + std::string(2000, 'a'))), 1u);
}

TEST(ReportedMetricsTest, LabelsAreUniqueAndNotReserved) {
  EXPECT_EQ(refused_labels({{"a", "1"}, {"b", "2"}, {"a", "1"}}), 1u);
  for (const char* name : {"node", "host", "job_id", "role", "pid", "worker", "le", "__name__", "", "a-b", "1a"}) {
    EXPECT_EQ(refused_labels({{name, "x"}}), 1u) << name;
  }
}

TEST(ReportedMetricsTest, LabelsAreUtf8) {
  for (const char* value :
       {"\x80", "\xc3", "\xc0\xaf", "a\xff", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_EQ(refused_labels({{"tag", value}}), 1u) << value;
  }
  std::vector<MetricFamily> families = {{"shoal_user_g", "\xff", MetricKind::kGauge, {}, {{{}, 1, {}}}}};
  EXPECT_EQ(leave_unreadable(families), 0u);
  EXPECT_EQ(families[0].help, "");
}

TEST(ReportedMetricsTest, LabelsComeByName) {
  std::vector<MetricFamily> families = {{"shoal_user_g", "", MetricKind::kGauge, {}, {{{{"b", "1"}, {"a", "2"}}, 1, {}}}}};
  EXPECT_EQ(leave_unreadable(families), 0u);
  EXPECT_EQ(families[0].samples[0].labels, (MetricSample::Labels{{"a", "2"}, {"b", "1"}}));
}

TEST(ReportedMetricsTest, BoundariesAscendAndAreFinite) {
  const auto histogram = [](std::vector<double> bounds) {
    const auto counts = std::vector<std::uint64_t>(bounds.size() + 1);
    return MetricFamily{"shoal_user_h", "", MetricKind::kHistogram, std::move(bounds), {{{}, 0, counts}}};
  };
  EXPECT_EQ(refused(histogram({2, 1})), 1u);
  EXPECT_EQ(refused(histogram({1, 1})), 1u);
  EXPECT_EQ(refused(histogram({1, std::numeric_limits<double>::infinity()})), 1u);
  EXPECT_EQ(refused(histogram({std::numeric_limits<double>::quiet_NaN()})), 1u);
}

TEST(ReportedMetricsTest, SeriesAndBytesAreBounded) {
  EXPECT_EQ(refused_labels({{"tag", std::string(kMaxLabelBytes - 3, 'x')}}), 0u);
  EXPECT_EQ(refused_labels({{"tag", std::string(kMaxLabelBytes - 2, 'x')}}), 1u);
  const auto many = [](std::size_t n, const std::string& tail) {
    FamilyOf family(MetricKind::kGauge, "shoal_user_g", "");
    for (std::size_t i = 0; i < n; ++i) family.add(1, {{"i", std::to_string(i) + tail}});
    return MetricFamily(family);
  };
  EXPECT_EQ(refused(many(kMaxReportedSeries + 5, "")), 5u);
  EXPECT_GT(refused(many(2000, std::string(1000, 'x'))), 900u);
}

}  // namespace
}  // namespace shoal::scheduler
