#include "actors/cluster/metrics.h"

#include <algorithm>

namespace shoal::actors {

FamilyOf& FamilyOf::add(double value, MetricSample::Labels labels) {
  std::sort(labels.begin(), labels.end());
  family_.samples.push_back({std::move(labels), value, {}});
  return *this;
}

MetricSample::Labels joined(MetricSample::Labels labels, const MetricSample::Labels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  std::sort(labels.begin(), labels.end());
  return labels;
}

// Names of series are unique in the whole of an exposition, and a histogram has three.
bool MetricSums::fits(const MetricFamily& family) const {
  if (const auto known = families_.find(family.name); known != families_.end()) {
    return known->second.kind == family.kind && known->second.bounds == family.bounds;
  }
  for (const std::string_view part : {"_bucket", "_sum", "_count"}) {
    if (family.kind == MetricKind::kHistogram && families_.contains(family.name + std::string(part))) return false;
    if (!family.name.ends_with(part)) continue;
    const auto whole = families_.find(family.name.substr(0, family.name.size() - part.size()));
    if (whole != families_.end() && whole->second.kind == MetricKind::kHistogram) return false;
  }
  return true;
}

void MetricSums::add(const MetricFamily& family, const MetricSample::Labels& labels) {
  if (!fits(family)) {
    left_out_ += family.samples.size();
    return;
  }
  Known& known = families_.try_emplace(family.name, Known{family.help, family.kind, family.bounds, {}}).first->second;
  for (const MetricSample& sample : family.samples) {
    const std::size_t buckets = family.kind == MetricKind::kHistogram ? family.bounds.size() + 1 : 0;
    auto key = joined(sample.labels, labels);
    const auto at = known.samples.find(key);
    if (sample.counts.size() != buckets || (at == known.samples.end() && series_ >= max_series_)) {
      ++left_out_;
    } else if (at == known.samples.end()) {
      ++series_;
      known.samples.emplace(key, MetricSample{key, sample.value, sample.counts});
    } else if (family.kind == MetricKind::kGauge) {
      at->second.value = sample.value;
    } else {
      at->second.value += sample.value;
      for (std::size_t i = 0; i < buckets; ++i) at->second.counts[i] += sample.counts[i];
    }
  }
}

std::vector<MetricFamily> MetricSums::families() const {
  std::vector<MetricFamily> out;
  for (const auto& [name, known] : families_) {
    out.push_back({name, known.help, known.kind, known.bounds, {}});
    for (const auto& [labels, sample] : known.samples) out.back().samples.push_back(sample);
  }
  return out;
}

}  // namespace shoal::actors
