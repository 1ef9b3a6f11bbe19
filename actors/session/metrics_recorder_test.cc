#include "actors/session/metrics_recorder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <thread>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

TEST(MetricsRecorderTest, ReportsRecordedMetrics) {
  MetricsRecorder recorder;
  auto* const steps = recorder.metric(MetricKind::kCounter, "steps", "of training").value();
  auto* const loss = recorder.metric(MetricKind::kGauge, "loss", "").value();
  auto* const seconds = recorder.metric(MetricKind::kHistogram, "seconds", "", {0.1, 1}).value();
  recorder.series(*steps, {{"stage", "one"}})->add(2);
  recorder.series(*steps, {{"stage", "one"}})->add(0.5);
  recorder.series(*loss, {})->set(-1);
  for (const double s : {0.05, 0.1, 0.5, 7.0}) recorder.series(*seconds, {})->observe(s, seconds->bounds);
  const std::vector<MetricFamily> expected = {
      {"shoal_user_loss", "", MetricKind::kGauge, {}, {{{}, -1, {}}}},
      {"shoal_user_seconds", "", MetricKind::kHistogram, {0.1, 1}, {{{}, 0.05 + 0.1 + 0.5 + 7, {2, 1, 1}}}},
      {"shoal_user_steps_total", "of training", MetricKind::kCounter, {}, {{{{"stage", "one"}}, 2.5, {}}}}};
  EXPECT_EQ(recorder.reported(), expected);
}

TEST(MetricsRecorderTest, TheSameNameIsTheSameMetric) {
  MetricsRecorder recorder;
  auto* const first = recorder.metric(MetricKind::kCounter, "n", "").value();
  EXPECT_EQ(recorder.metric(MetricKind::kCounter, "n", "again").value(), first);
  EXPECT_EQ(recorder.metric(MetricKind::kGauge, "n", "").error().code(), Code::kInvalidArgument);
  ASSERT_TRUE(recorder.metric(MetricKind::kHistogram, "h", "", {1, 2}));
  EXPECT_EQ(recorder.metric(MetricKind::kHistogram, "h", "", {1, 3}).error().code(), Code::kInvalidArgument);
}

TEST(MetricsRecorderTest, RefusesMetricsThatPrometheusCannotRead) {
  MetricsRecorder recorder;
  for (const char* name : {"", "1st", "a-b", "a b", "a:b", "\xc3\xa4"}) EXPECT_FALSE(recorder.metric(MetricKind::kGauge, name, "")) << name;
  EXPECT_FALSE(recorder.metric(MetricKind::kHistogram, "h", "", {2, 1}));
  EXPECT_FALSE(recorder.metric(MetricKind::kHistogram, "h", "", {1, 1}));
  EXPECT_FALSE(recorder.metric(MetricKind::kHistogram, "h", "", {1, std::numeric_limits<double>::infinity()}));
  for (const char* label : {"", "le", "__name__", "a-b"}) EXPECT_FALSE(is_label(label)) << label;
  EXPECT_TRUE(is_label("stage"));
}

TEST(MetricsRecorderTest, LabelsOfOursAreKeptApart) {
  MetricsRecorder recorder;
  auto* const gauge = recorder.metric(MetricKind::kGauge, "g", "").value();
  recorder.series(*gauge, {{"node", "mine"}, {"a", "b"}})->set(1);
  EXPECT_EQ(recorder.reported()[0].samples[0].labels, (MetricSample::Labels{{"a", "b"}, {"exported_node", "mine"}}));
}

TEST(MetricsRecorderTest, LabelsThatAreRenamedMeetNoOther) {
  MetricsRecorder recorder;
  auto* const gauge = recorder.metric(MetricKind::kGauge, "g", "").value();
  recorder.series(*gauge, {{"node", "1"}, {"exported_node", "2"}})->set(1);
  EXPECT_EQ(recorder.reported()[0].samples[0].labels, (MetricSample::Labels{{"exported_exported_node", "1"}, {"exported_node", "2"}}));
}

TEST(MetricsRecorderTest, SeriesAreBounded) {
  MetricsRecorder recorder;
  auto* const counter = recorder.metric(MetricKind::kCounter, "n", "").value();
  for (std::size_t i = 0; i < MetricsRecorder::kMaxSeries; ++i) ASSERT_NE(recorder.series(*counter, {{"i", std::to_string(i)}}), nullptr);
  EXPECT_EQ(recorder.series(*counter, {{"i", "more"}}), nullptr);
  EXPECT_NE(recorder.series(*counter, {{"i", "0"}}), nullptr);
}

TEST(MetricsRecorderTest, DroppedSeriesAreReportedOnce) {
  MetricsRecorder recorder;
  auto* const counter = recorder.metric(MetricKind::kCounter, "n", "").value();
  auto* const gauge = recorder.metric(MetricKind::kGauge, "g", "").value();
  recorder.series(*counter, {})->add(3);
  recorder.series(*gauge, {})->set(4);
  EXPECT_EQ(recorder.reported(true)[1].samples[0].value, 3);
  EXPECT_EQ(recorder.reported()[1].samples[0].value, 0);
  EXPECT_EQ(recorder.reported()[0].samples[0].value, 4);
}

TEST(MetricsRecorderTest, ThreadsRecordTogether) {
  MetricsRecorder recorder;
  auto* const counter = recorder.metric(MetricKind::kCounter, "n", "").value();
  const auto record = [&] {
    for (int i = 0; i < 10'000; ++i) recorder.series(*counter, {})->add(1);
  };
  std::thread one(record), two(record);
  for (int i = 0; i < 100; ++i) (void)recorder.reported();
  one.join();
  two.join();
  EXPECT_EQ(recorder.reported()[0].samples[0].value, 20'000);
}

// A thread adds series while another one forks. A child that inherits a locked mutex would wait for ever.
TEST(MetricsRecorderTest, AForkedChildCountsAnew) {
  MetricsRecorder recorder;
  auto* const counter = recorder.metric(MetricKind::kCounter, "n", "").value();
  recorder.series(*counter, {})->add(3);
  std::atomic<bool> ends = false;
  std::thread other([&] {
    while (!ends) (void)recorder.reported();
  });
  for (int i = 0; i < 100; ++i) {
    recorder.before_fork();
    const pid_t child = fork();
    recorder.after_fork(child == 0);
    if (child == 0) {
      alarm(20);
      _exit(recorder.reported()[0].samples[0].value == 0 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  ends = true;
  other.join();
  EXPECT_EQ(recorder.reported()[0].samples[0].value, 3);
}

}  // namespace
}  // namespace shoal::actors
