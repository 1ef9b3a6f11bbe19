// Metrics as messages carry them: families of one name, with samples distinguished by labels. Plain values and their sums; no state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::actors {

enum class MetricKind : std::uint16_t {
  kCounter = 0,    // only grows; summed over processes, ended ones included
  kGauge = 1,      // a value of one process
  kHistogram = 2,  // summed like a counter
  kLevel = 3,      // a gauge summed over living processes
};
inline constexpr std::uint16_t kNumMetricKinds = 4;

struct MetricSample {
  using Labels = std::vector<std::pair<std::string, std::string>>;  // sorted by name, each once
  Labels labels;
  double value = 0;                   // a histogram's sum of observations
  std::vector<std::uint64_t> counts;  // a histogram's counts: observations in each bucket, not cumulative; the last: beyond all bounds
  bool operator==(const MetricSample&) const = default;
};

struct MetricFamily {
  std::string name, help;
  MetricKind kind = MetricKind::kGauge;
  std::vector<double> bounds;  // a histogram's, ascending
  std::vector<MetricSample> samples;
  bool operator==(const MetricFamily&) const = default;
};

// Builds a family of the runtime, sample by sample.
class FamilyOf {
 public:
  FamilyOf(MetricKind kind, std::string name, std::string help) {
    family_.kind = kind;
    family_.name = std::move(name);
    family_.help = std::move(help);
  }
  FamilyOf& add(double value, MetricSample::Labels labels = {});
  operator MetricFamily() const { return family_; }

 private:
  MetricFamily family_;
};

// `labels` and `more`, whose names must differ; sorted by name.
MetricSample::Labels joined(MetricSample::Labels labels, const MetricSample::Labels& more);

// Sums families: samples of equal name and labels become one; of gauges the last wins.
class MetricSums {
 public:
  explicit MetricSums(std::size_t max_series = SIZE_MAX) : max_series_(max_series) {}

  // Adds each sample with the additional `labels`. Samples beyond max_series, or that conflict in kind, bounds or a histogram's derived
  // names, are left out and counted.
  void add(const MetricFamily& family, const MetricSample::Labels& labels = {});
  // Sorted by name, samples by labels.
  std::vector<MetricFamily> families() const;
  std::size_t series() const { return series_; }
  std::uint64_t left_out() const { return left_out_; }

 private:
  struct Known {
    std::string help;
    MetricKind kind;
    std::vector<double> bounds;
    std::map<MetricSample::Labels, MetricSample> samples;
  };
  bool fits(const MetricFamily& family) const;

  std::size_t max_series_;
  std::map<std::string, Known> families_;
  std::size_t series_ = 0;
  std::uint64_t left_out_ = 0;
};

}  // namespace shoal::actors
