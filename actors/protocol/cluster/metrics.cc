#include "actors/protocol/cluster/metrics.h"

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

namespace {

// The key of a family in families_. Histograms of one name may have other bounds under other labels. Each set of bounds is a family of its
// own, and these families are adjacent in the map.
std::string key_of(const MetricFamily& family) {
  std::string key = family.name;
  if (family.kind != MetricKind::kHistogram) return key;
  key += '\0';
  for (const double b : family.bounds) key.append(reinterpret_cast<const char*>(&b), sizeof b);
  return key;
}

std::string_view name_of(const std::string& key) { return std::string_view(key).substr(0, key.find('\0')); }

// Finds the first family of this name.
template <typename Families>
auto named(Families& families, const std::string& name) {
  const auto at = families.lower_bound(name);
  return at != families.end() && name_of(at->first) == name ? at : families.end();
}

}  // namespace

// True if no family of another kind has this name or one of the names of its series. A histogram has three: .._bucket, .._sum, .._count.
bool MetricSums::fits(const MetricFamily& family) const {
  if (const auto known = named(families_, family.name); known != families_.end()) return known->second.kind == family.kind;
  for (const std::string_view part : {"_bucket", "_sum", "_count"}) {
    if (family.kind == MetricKind::kHistogram && named(families_, family.name + std::string(part)) != families_.end()) return false;
    if (!family.name.ends_with(part)) continue;
    const auto whole = named(families_, family.name.substr(0, family.name.size() - part.size()));
    if (whole != families_.end() && whole->second.kind == MetricKind::kHistogram) return false;
  }
  return true;
}

void MetricSums::add(const MetricFamily& family, const MetricSample::Labels& labels) {
  if (family.samples.empty()) return;
  if (!fits(family)) {
    left_out_ += family.samples.size();
    return;
  }
  Known& known = families_.try_emplace(key_of(family), Known{family.help, family.kind, family.bounds, {}}).first->second;
  const std::size_t buckets = family.kind == MetricKind::kHistogram ? family.bounds.size() + 1 : 0;
  const std::size_t size = std::max<std::size_t>(buckets, 1);  // number of series per sample
  const auto has_other_bounds = [&](const MetricSample::Labels& key) {
    for (auto f = named(families_, family.name); f != families_.end() && name_of(f->first) == family.name; ++f) {
      if (&f->second != &known && f->second.samples.contains(key)) return true;
    }
    return false;
  };
  for (const MetricSample& sample : family.samples) {
    auto key = joined(sample.labels, labels);
    const auto at = known.samples.find(key);
    const bool is_new = at == known.samples.end();
    if (sample.counts.size() != buckets || (is_new && (size > max_series_ - series_ || has_other_bounds(key)))) {
      ++left_out_;
    } else if (is_new) {
      series_ += size;
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
  for (const auto& [key, known] : families_) {
    if (known.samples.empty()) continue;
    out.push_back({std::string(name_of(key)), known.help, known.kind, known.bounds, {}});
    for (const auto& [labels, sample] : known.samples) out.back().samples.push_back(sample);
  }
  return out;
}

}  // namespace shoal::actors
