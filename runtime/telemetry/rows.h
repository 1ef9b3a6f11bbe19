// The rows of a run's folder. docs/runs.md has their keys and meaning.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/telemetry/live_page.h"

namespace shoal::runtime {

// The steps of a row, and their times in microseconds.
struct StepRow {
  std::uint64_t step = 0;
  std::int64_t steps = 1;  // how many the row sums up; its key is "n"
  int rank = 0, world = 1, generation = 1;
  std::int64_t end_us = 0;  // time of day
  std::int64_t total_us = 0;
  std::array<std::int64_t, kNumActivities> at = {};  // by Activity
  std::int64_t cpu_us = 0, longest_us = 0;

  std::int64_t& in(Activity activity) { return at[static_cast<std::size_t>(activity)]; }
  std::int64_t in(Activity activity) const { return at[static_cast<std::size_t>(activity)]; }
  // gather + reduce + window + sync
  std::int64_t exposed_us() const;
  double exposed_part() const;  // a part of the step: 0 to 1
  // The rank's own work.
  std::int64_t own_us() const { return total_us - exposed_us(); }
  void add(const StepRow& later);
};

struct Span {
  Activity activity = Activity::kElsewhere;
  int unit = -1;
  std::int64_t from_us = 0, length_us = 0;
};

// One step in detail.
struct SpansRow {
  std::uint64_t step = 0;
  int rank = 0;
  std::int64_t begin_us = 0;
  std::vector<Span> spans = {};
};

struct SampleRow {
  std::int64_t t_us = 0, samples = 1;
  std::int64_t rss = 0, cpu_us = 0, runqueue_us = 0, major_faults = 0;
  std::int64_t host_free = 0, host_total = 0, disk_free = 0;
  double pressure_cpu = 0, pressure_io = 0, pressure_memory = 0;
  std::uint64_t step = 0;
};

struct MetricsRow {
  std::int64_t t_us = 0;
  std::uint64_t step = 0;
  std::vector<std::pair<std::string, double>> values = {};
};

// A line without its end of line.
std::string to_line(const StepRow& row);
std::string to_line(const SpansRow& row);
std::string to_line(const SampleRow& row);
std::string to_line(const MetricsRow& row);

// nullopt: the line is not such a row. Keys that are absent count as 0.
std::optional<StepRow> step_row(std::string_view line);
std::optional<SpansRow> spans_row(std::string_view line);
std::optional<SampleRow> sample_row(std::string_view line);
std::optional<MetricsRow> metrics_row(std::string_view line);

}  // namespace shoal::runtime
