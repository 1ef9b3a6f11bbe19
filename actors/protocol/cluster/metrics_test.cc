#include "actors/protocol/cluster/metrics.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

MetricFamily counter(double value, MetricSample::Labels labels = {}) {
  return FamilyOf(MetricKind::kCounter, "n", "help").add(value, std::move(labels));
}
MetricFamily histogram(std::vector<double> bounds, std::vector<std::uint64_t> counts, double sum) {
  return {"h", "", MetricKind::kHistogram, std::move(bounds), {{{}, sum, std::move(counts)}}};
}

TEST(MetricSumsTest, CountersAndHistogramsAddUp) {
  MetricSums sums;
  sums.add(counter(1), {{"node", "a"}});
  sums.add(counter(2), {{"node", "a"}});
  sums.add(counter(4), {{"node", "b"}});
  sums.add(histogram({1}, {2, 3}, 10));
  sums.add(histogram({1}, {1, 0}, 0.5));
  const std::vector<MetricFamily> expected = {
      {"h", "", MetricKind::kHistogram, {1}, {{{}, 10.5, {3, 3}}}},
      {"n", "help", MetricKind::kCounter, {}, {{{{"node", "a"}}, 3, {}}, {{{"node", "b"}}, 4, {}}}}};
  EXPECT_EQ(sums.families(), expected);
  EXPECT_EQ(sums.left_out(), 0u);
}

TEST(MetricSumsTest, LevelsAddUpAndOfGaugesTheLastCounts) {
  MetricSums sums;
  for (const double value : {1.0, 2.0}) {
    sums.add(FamilyOf(MetricKind::kLevel, "level", "").add(value));
    sums.add(FamilyOf(MetricKind::kGauge, "gauge", "").add(value));
  }
  EXPECT_EQ(sums.families()[0].samples[0].value, 2);
  EXPECT_EQ(sums.families()[1].samples[0].value, 3);
}

TEST(MetricSumsTest, WhatDoesNotFitIsLeftOut) {
  MetricSums sums;
  sums.add(counter(1));
  sums.add(FamilyOf(MetricKind::kGauge, "n", "").add(5));
  sums.add(histogram({1}, {1, 0}, 1));
  sums.add(histogram({2}, {1, 0}, 1));
  sums.add(histogram({1}, {1}, 1));
  sums.add(FamilyOf(MetricKind::kGauge, "h_count", "").add(5));
  EXPECT_EQ(sums.left_out(), 4u);
  EXPECT_EQ(sums.families().size(), 2u);
  EXPECT_EQ(sums.families()[1].samples[0].value, 1);
}

TEST(MetricSumsTest, HistogramsOfOneNameHaveBoundariesOfTheirOwn) {
  MetricSums sums;
  sums.add(histogram({1}, {1, 0}, 1), {{"job", "a"}});
  sums.add(histogram({2, 3}, {1, 0, 0}, 1), {{"job", "b"}});
  sums.add(histogram({2, 3}, {1, 0, 0}, 1), {{"job", "b"}});
  sums.add(histogram({2}, {1, 0}, 1), {{"job", "b"}});
  EXPECT_EQ(sums.left_out(), 1u);
  const std::vector<MetricFamily> expected = {{"h", "", MetricKind::kHistogram, {1}, {{{{"job", "a"}}, 1, {1, 0}}}},
                                              {"h", "", MetricKind::kHistogram, {2, 3}, {{{{"job", "b"}}, 2, {2, 0, 0}}}}};
  const auto families = sums.families();
  ASSERT_EQ(families.size(), 2u);
  EXPECT_TRUE(std::is_permutation(families.begin(), families.end(), expected.begin()));
  sums.add(FamilyOf(MetricKind::kCounter, "h", "").add(5, {{"job", "c"}}));
  EXPECT_EQ(sums.left_out(), 2u);
}

TEST(MetricSumsTest, EachBucketIsASeries) {
  MetricSums sums(4);
  sums.add(histogram({1}, {1, 0}, 1), {{"job", "a"}});
  sums.add(histogram({1, 2}, {1, 0, 0}, 1), {{"job", "b"}});
  sums.add(histogram({1}, {1, 0}, 1), {{"job", "c"}});
  EXPECT_EQ(sums.series(), 4u);
  EXPECT_EQ(sums.left_out(), 1u);
}

TEST(MetricSumsTest, SeriesAreBounded) {
  MetricSums sums(2);
  for (const char* job : {"1", "2", "3", "1"}) sums.add(counter(1, {{"job", job}}));
  EXPECT_EQ(sums.series(), 2u);
  EXPECT_EQ(sums.left_out(), 1u);
  EXPECT_EQ(sums.families()[0].samples[0].value, 2);
}

}  // namespace
}  // namespace shoal::actors
