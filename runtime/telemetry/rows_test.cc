#include "runtime/telemetry/rows.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shoal::runtime {
namespace {

StepRow row(std::uint64_t step, std::int64_t us) {
  StepRow out;
  out.step = step, out.rank = 3, out.world = 4, out.generation = 2, out.end_us = 1'700'000'000'000'000 + us, out.total_us = us;
  for (int i = 0; i < kNumActivities; ++i) out.in(static_cast<Activity>(i)) = us / 10 + i;
  out.cpu_us = us / 2, out.longest_us = us;
  return out;
}

TEST(RowsTest, AStepIsReadAsItWasWritten) {
  const auto written = row(812, 12'345);
  const auto read = step_row(to_line(written));
  ASSERT_TRUE(read);
  EXPECT_EQ(to_line(*read), to_line(written));
  EXPECT_EQ(read->in(Activity::kWindow), written.in(Activity::kWindow));
  EXPECT_EQ(read->rank, 3);
  EXPECT_LT(to_line(written).size(), 300u);  // a week of steps has millions of rows
}

TEST(RowsTest, RowsOfSeveralStepsAddUp) {
  auto sum = row(1, 100);
  sum.add(row(2, 300));
  EXPECT_EQ(sum.step, 2u);
  EXPECT_EQ(sum.steps, 2);
  EXPECT_EQ(sum.total_us, 400);
  EXPECT_EQ(sum.longest_us, 300);
  EXPECT_EQ(sum.in(Activity::kForward), 10 + 2 + 30 + 2);
  EXPECT_EQ(sum.exposed_us() + sum.own_us(), 400);
}

TEST(RowsTest, SpansSamplesAndMetricsAreReadAsTheyWereWritten) {
  const SpansRow spans{7, 1, 99, {{Activity::kForward, 2, 0, 10}, {Activity::kGather, -1, 3, 4}}};
  EXPECT_EQ(to_line(spans_row(to_line(spans)).value()), to_line(spans));
  SampleRow sample;
  sample.t_us = 5, sample.rss = 1 << 30, sample.pressure_io = 12.5, sample.disk_free = 77;
  EXPECT_EQ(to_line(sample_row(to_line(sample)).value()), to_line(sample));
  const MetricsRow metrics{5, 9, {{"loss", 2.25}, {"norm", std::nan("")}, {"scale", INFINITY}}};
  const auto read = metrics_row(to_line(metrics)).value();
  EXPECT_EQ(to_line(read), to_line(metrics));
  EXPECT_TRUE(std::isnan(read.values[1].second));
}

// Rows in the form of to_line() are read by a faster way than others.
TEST(RowsTest, ALineInAnotherFormGivesTheSameRow) {
  const auto spaced = [](std::string line) {
    for (std::size_t at = 0; (at = line.find(':', at)) != std::string::npos; at += 2) line.insert(at + 1, " ");
    return line;
  };
  const auto step = to_line(row(812, 12'345));
  EXPECT_EQ(to_line(step_row(spaced(step)).value()), step);
  SampleRow sample;
  sample.t_us = 5, sample.rss = 1 << 30, sample.pressure_io = 12.5, sample.pressure_cpu = -0.25, sample.step = 9;
  EXPECT_EQ(to_line(sample_row(spaced(to_line(sample))).value()), to_line(sample));
  const auto metrics = to_line(MetricsRow{5, 9, {{"loss", 2.25e-7}, {"norm", -3}}});
  EXPECT_EQ(to_line(metrics_row(metrics).value()), to_line(metrics_row(spaced(metrics)).value()));
  EXPECT_EQ(metrics_row(R"({"values":{"\u0041":1},"t":5,"step":9})")->values[0].first, "A");
  // Numbers that are none of 64 bits, or have a fraction.
  EXPECT_EQ(step_row(R"({"step":3,"us":7.9,"n":2})")->total_us, 7);
  EXPECT_EQ(step_row(R"({"step":3,"us":99999999999999999999,"n":2})")->total_us, 0);
  EXPECT_EQ(step_row(R"({"n":2,"us":7,"step":3,"later":1.5})")->step, 3u);
  for (const char* line : {R"({"step":3,"us":7)", R"({"step":3,"us":7}})", R"({"step":3,"us":7,})", R"({"step":3,"us":})",
                           R"({"step":003,"us":7})", R"({"step":3,"us":7,"later":1.})", R"({"step":3,"us":7,"later":nan})"}) {
    EXPECT_FALSE(step_row(line)) << line;
  }
  const MetricsRow last = metrics_row(R"({"t":5,"step":9,"values":{"loss":1,"loss":2}})").value();
  ASSERT_EQ(last.values.size(), 1u);
  EXPECT_EQ(last.values[0].second, 2);
  EXPECT_EQ(metrics_row(R"({"t":5,"step":9,"values":{"a":1},"values":{"b":2}})")->values[0].first, "b");
}

TEST(RowsTest, OtherLinesAreNoRows) {
  for (const char* line : {"", "{", "[]", "3", "{\"step\":1", "{\"kind\":\"begin\"}", "\"step us rss values spans\""}) {
    EXPECT_FALSE(step_row(line)) << line;
    EXPECT_FALSE(spans_row(line)) << line;
    EXPECT_FALSE(sample_row(line)) << line;
    EXPECT_FALSE(metrics_row(line)) << line;
  }
  const std::string deep = R"({"step":1,"us":1,"rss":1,"values":{},"spans":)" + std::string(400'000, '[') + std::string(400'000, ']') + "}";
  EXPECT_FALSE(step_row(deep) || spans_row(deep) || sample_row(deep) || metrics_row(deep));
  EXPECT_EQ(step_row(R"({"step":"x","us":1e300,"n":-4})")->steps, 1);
  EXPECT_TRUE(spans_row(R"({"spans":[1,["fwd"],["nowhere",0,0,0],["fwd",0.5,0,0]]})")->spans.empty());
}

}  // namespace
}  // namespace shoal::runtime
