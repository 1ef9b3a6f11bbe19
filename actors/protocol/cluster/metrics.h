// Metrics as messages carry them: families of one name, with samples distinguished by labels. Plain values and their sums; no state.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/protocol/cluster/fields.h"

namespace shoal::actors {

enum class MetricKind : std::uint16_t {
  kCounter = 0,    // only grows; summed over processes, also those that have ended
  kGauge = 1,      // a value that belongs to one process, and is not summed
  kHistogram = 2,  // summed over processes like a counter
  kLevel = 3,      // summed over the processes that live
};
inline constexpr std::uint16_t kNumMetricKinds = 4;

// For lists of fields (fields.h). LabelTexts sends labels as texts: name, value, name, .. With MetricName a text has to be a metric's name.
template <class Labels>
struct LabelTexts {
  Labels& labels;
};
struct MetricName {};

struct MetricSample {
  using Labels = std::vector<std::pair<std::string, std::string>>;  // sorted by name; each name occurs once
  Labels labels;
  double value = 0;  // the value; for a histogram, the sum of all observations
  // Only for a histogram: the number of observations in each bucket (not cumulative), and at the end of those beyond all bounds.
  std::vector<std::uint64_t> counts;
  bool operator==(const MetricSample&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(LabelTexts{v.labels}, Labels);
    SHOAL_FIELD(v.value, Value);
    SHOAL_FIELD(v.counts, Counts, kMaxList, "counts");
  }
};

struct MetricFamily {
  std::string name, help;
  MetricKind kind = MetricKind::kGauge;
  std::vector<double> bounds;  // for a histogram: upper ends of its buckets, ascending
  std::vector<MetricSample> samples;
  bool operator==(const MetricFamily&) const = default;
  static void fields(auto& v, auto io) {
    SHOAL_FIELD(v.name, Name, MetricName{});
    SHOAL_FIELD(v.help, Help);
    SHOAL_FIELD(v.kind, Kind, kNumMetricKinds, "kind of metric");
    SHOAL_FIELD(v.bounds, Bounds, kMaxList, "bounds");
    SHOAL_FIELD(v.samples, Samples);
  }
};

// Builds a metric family of the runtime itself, sample by sample.
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

// Returns `labels` and `more` together, sorted by name. They have no name in common.
MetricSample::Labels joined(MetricSample::Labels labels, const MetricSample::Labels& more);

// Sums metric families: samples of equal name and labels become one. A gauge takes the place of an equal one added before.
class MetricSums {
 public:
  explicit MetricSums(std::size_t max_series = SIZE_MAX) : max_series_(max_series) {}

  // Adds the family's samples, each with the additional `labels`. Leaves out and counts samples beyond max_series, and those whose kind,
  // bounds, or names of a histogram's series conflict with earlier ones.
  void add(const MetricFamily& family, const MetricSample::Labels& labels = {});
  // Returns the sums, sorted by name; the samples of a family are sorted by labels.
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
