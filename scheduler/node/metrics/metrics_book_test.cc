#include "scheduler/node/metrics/metrics_book.h"

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace metrics_book_test {

using actors::FamilyOf;
using actors::MetricFamily;
using actors::MetricKind;

constexpr JobId kJob{1}, kOther{2};
constexpr WorkerId kOne{10}, kTwo{11};

std::vector<MetricFamily> measured(double counted, double gauge) {
  return {FamilyOf(MetricKind::kCounter, "shoal_user_n_total", "").add(counted),
          FamilyOf(MetricKind::kGauge, "shoal_user_g", "").add(gauge), FamilyOf(MetricKind::kLevel, "shoal_user_level", "").add(gauge)};
}

// The values of samples by "name{labels}".
std::map<std::string, double> rows(const MetricsBook& book, const std::set<WorkerId>& silent = {}) {
  std::map<std::string, double> out;
  for (const auto& family : book.sums(silent).families()) {
    for (const auto& sample : family.samples) {
      std::string row = family.name.substr(std::string("shoal_user_").size());
      for (const auto& [name, value] : sample.labels) {
        if (name != "job_id") row += " " + name + "=" + value;
      }
      out[row] = sample.value;
    }
  }
  return out;
}

using Rows = std::map<std::string, double>;

TEST(MetricsBookTest, CountersAddUpAndGaugesAreOfOneProcess) {
  MetricsBook book;
  book.reported(kOne, {kJob, "actor A", 5}, measured(2, 7));
  book.reported(kTwo, {kJob, "actor A", 6}, measured(3, 8));
  EXPECT_EQ(rows(book), (Rows{{"g pid=5 role=actor A worker=" + to_string(kOne), 7},
                              {"g pid=6 role=actor A worker=" + to_string(kTwo), 8},
                              {"level role=actor A", 15},
                              {"n_total role=actor A", 5}}));
}

TEST(MetricsBookTest, TheLastReportCounts) {
  MetricsBook book;
  book.reported(kOne, {kJob, "driver", 5}, measured(2, 7));
  book.reported(kOne, {kJob, "driver", 5}, measured(4, 7));
  EXPECT_EQ(rows(book).at("n_total role=driver"), 4);
}

TEST(MetricsBookTest, CountersOfEndedProcessesStay) {
  MetricsBook book;
  book.reported(kOne, {kJob, "actor A", 5}, measured(2, 7));
  book.reported(kTwo, {kJob, "actor A", 6}, measured(3, 8));
  book.ended(kOne);
  book.ended(kOne);
  book.ended(WorkerId{99});
  EXPECT_EQ(rows(book),
            (Rows{{"g pid=6 role=actor A worker=" + to_string(kTwo), 8}, {"level role=actor A", 8}, {"n_total role=actor A", 5}}));
  book.ended(kTwo);
  EXPECT_EQ(rows(book), (Rows{{"n_total role=actor A", 5}}));
}

TEST(MetricsBookTest, CountersOfSilentProcessesStay) {
  MetricsBook book;
  book.reported(kOne, {kJob, "actor A", 5}, measured(2, 7));
  EXPECT_EQ(rows(book, {kOne}), (Rows{{"n_total role=actor A", 2}}));
}

TEST(MetricsBookTest, JobsThatAreOverForLongestAreForgotten) {
  MetricsBook book;
  const auto many = [](std::size_t n) {
    FamilyOf family(MetricKind::kCounter, "shoal_user_n_total", "");
    for (std::size_t i = 0; i < n; ++i) family.add(1, {{"i", std::to_string(i)}});
    return std::vector<MetricFamily>{family};
  };
  book.reported(kOne, {kJob, "one", 5}, many(MetricsBook::kMaxOverSeries - 1));
  book.ended(kOne);
  book.reported(kTwo, {kOther, "two", 6}, many(2));
  book.ended(kTwo);
  EXPECT_EQ(rows(book).size(), MetricsBook::kMaxOverSeries + 1);
  book.over(kJob);
  book.over(kJob);
  EXPECT_EQ(rows(book).size(), MetricsBook::kMaxOverSeries + 1);
  book.over(kOther);
  EXPECT_EQ(rows(book), (Rows{{"n_total i=0 role=two", 1}, {"n_total i=1 role=two", 1}}));
}

TEST(MetricsBookTest, SeriesOfARunningJobAreKept) {
  MetricsBook book;
  book.reported(kOne, {kJob, "one", 5}, measured(1, 1));
  book.ended(kOne);
  for (std::uint64_t i = 0; i < 2 * MetricsBook::kMaxOverSeries; ++i) {
    book.reported(kTwo, {JobId{100 + i}, "two", 6}, measured(1, 1));
    book.ended(kTwo);
    book.over(JobId{100 + i});
  }
  EXPECT_EQ(rows(book).at("n_total role=one"), 1);
  EXPECT_EQ(book.sums({}).series(), MetricsBook::kMaxOverSeries + 1);
}

TEST(MetricsBookTest, CountersOfLivingProcessesThatLeftStay) {
  MetricsBook book;
  book.reported(kOne, {kJob, "driver", 5}, measured(2, 7));
  book.left(kOne);
  book.left(WorkerId{99});
  EXPECT_EQ(rows(book), (Rows{{"n_total role=driver", 2}}));
  book.ended(kOne);
  EXPECT_EQ(rows(book), (Rows{{"n_total role=driver", 2}}));
}

TEST(MetricsBookTest, AnOldDefinitionOfAMetricHidesNoLivingSeries) {
  MetricsBook book;
  book.reported(kOne, {kJob, "one", 5}, {FamilyOf(MetricKind::kCounter, "shoal_user_x", "").add(1)});
  book.ended(kOne);
  book.reported(kTwo, {kOther, "two", 6}, {FamilyOf(MetricKind::kGauge, "shoal_user_x", "").add(2)});
  EXPECT_EQ(rows(book), (Rows{{"x pid=6 role=two worker=" + to_string(kTwo), 2}}));
  EXPECT_EQ(book.sums({}).left_out(), 1u);
}

TEST(MetricsBookTest, EachJobHasBoundariesOfItsOwn) {
  MetricsBook book;
  const auto observed = [](double bound) {
    return std::vector<MetricFamily>{{"shoal_user_h", "", MetricKind::kHistogram, {bound}, {{{}, 5, {1, 0}}}}};
  };
  book.reported(kOne, {kJob, "driver", 5}, observed(1));
  book.ended(kOne);
  book.reported(kTwo, {kOther, "driver", 6}, observed(2));
  EXPECT_EQ(book.sums({}).left_out(), 0u);
  EXPECT_EQ(book.sums({}).families().size(), 2u);
}

TEST(MetricsBookTest, MetricsThatPrometheusCannotReadAreRefusedAndCounted) {
  MetricsBook book;
  book.reported(
      kOne, {kJob, "one", 5},
      {FamilyOf(MetricKind::kGauge, "shoal_user_g", "").add(1, {{"node", "mine"}}).add(2), FamilyOf(MetricKind::kGauge, "up", "").add(1)});
  EXPECT_EQ(rows(book), (Rows{{"g pid=5 role=one worker=" + to_string(kOne), 2}}));
  EXPECT_EQ(book.left_out(), 2u);
}

TEST(MetricsBookTest, SeriesOfANodeAreBounded) {
  MetricsBook book;
  FamilyOf many(MetricKind::kGauge, "shoal_user_g", "");
  for (std::size_t i = 0; i < MetricsBook::kMaxSeries / 4; ++i) many.add(1, {{"i", std::to_string(i)}});
  for (std::uint64_t w = 1; w <= 5; ++w) book.reported(WorkerId{w}, {kJob, "many", 5}, {many});
  EXPECT_EQ(book.sums({}).series(), MetricsBook::kMaxSeries);
  EXPECT_EQ(book.sums({}).left_out(), MetricsBook::kMaxSeries / 4);
}

}  // namespace metrics_book_test
}  // namespace shoal::scheduler
