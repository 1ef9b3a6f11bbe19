// Measurements as they travel: families of one name, each with samples that labels tell apart. Plain values and how they add up; pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal::actors {

enum class MetricKind : std::uint16_t {
  kCounter = 0,    // only grows; of several processes it is added up, also of those that have ended
  kGauge = 1,      // a value of one process
  kHistogram = 2,  // as a counter
  kLevel = 3,      // a gauge that is added up over processes, as long as they live
};
inline constexpr std::uint16_t kNumMetricKinds = 4;

struct MetricSample {
  using Labels = std::vector<std::pair<std::string, std::string>>;  // by name, each once
  Labels labels;
  double value = 0;                   // of a histogram the sum of what was observed
  std::vector<std::uint64_t> counts;  // of a histogram: observed up to each bound and no earlier one; the last: beyond all
  bool operator==(const MetricSample&) const = default;
};

struct MetricFamily {
  std::string name, help;
  MetricKind kind = MetricKind::kGauge;
  std::vector<double> bounds;  // of a histogram, ascending
  std::vector<MetricSample> samples;
  bool operator==(const MetricFamily&) const = default;
};

// A family of ours, sample by sample.
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

// `labels` and `more`, which are other names; by name.
MetricSample::Labels joined(MetricSample::Labels labels, const MetricSample::Labels& more);

// Families added up: samples of the same name and labels become one, of gauges the last.
class MetricSums {
 public:
  explicit MetricSums(std::size_t max_series = SIZE_MAX) : max_series_(max_series) {}

  // Each sample with `labels` besides. What cannot be added to what is there (another kind, other bounds, a name that is a part of a
  // histogram's) and what is beyond max_series is left out, and counted.
  void add(const MetricFamily& family, const MetricSample::Labels& labels = {});
  // By name, samples by labels.
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
