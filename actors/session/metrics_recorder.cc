#include "actors/session/metrics_recorder.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "actors/protocol/cluster/metric_name.h"

namespace shoal::actors {

bool is_label(const std::string& name) { return is_label_name(name); }

void MetricsRecorder::Series::observe(double value, const std::vector<double>& bounds) {
  const auto bucket = static_cast<std::size_t>(std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin());
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  add(value);
}

Result<MetricsRecorder::Metric*> MetricsRecorder::metric(MetricKind kind, const std::string& name, const std::string& help,
                                                         std::vector<double> bounds) {
  if (!is_metric_name(name))
    return fail(invalid_argument("'" + name + "' is not a metric's name: use letters, digits and _, no digit first"));
  const auto finite = [](double b) { return std::isfinite(b); };
  if (!std::all_of(bounds.begin(), bounds.end(), finite) ||
      std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) != bounds.end()) {
    return fail(invalid_argument("boundaries of histogram " + name + " have to be finite, each greater than the one before"));
  }
  const std::lock_guard lock(mutex_);
  auto& known = metrics_[name];
  if (!known)
    known = std::make_unique<Metric>(kind, name, help, std::move(bounds));
  else if (known->kind != kind)
    return fail(invalid_argument("metric " + name + " already has another kind in this process"));
  else if (known->bounds != bounds)
    return fail(invalid_argument("histogram " + name + " already has other boundaries in this process"));
  return known.get();
}

MetricsRecorder::Series* MetricsRecorder::series(Metric& metric, MetricSample::Labels labels) {
  std::set<std::string> taken;
  for (const auto& [name, value] : labels) taken.insert(name);
  for (auto& [name, value] : labels) {
    if (!is_label_of_ours(name)) continue;
    do name = "exported_" + name;
    while (!taken.insert(name).second);
  }
  std::sort(labels.begin(), labels.end());
  const std::size_t buckets = metric.kind == MetricKind::kHistogram ? metric.bounds.size() + 1 : 0;
  const std::lock_guard lock(mutex_);
  if (const auto known = metric.series_.find(labels); known != metric.series_.end()) return &known->second;
  if (size_ + std::max<std::size_t>(buckets, 1) > kMaxSeries) return nullptr;
  size_ += std::max<std::size_t>(buckets, 1);
  return &metric.series_.try_emplace(labels, labels, buckets).first->second;
}

std::vector<MetricFamily> MetricsRecorder::take(bool forget) {
  std::vector<MetricFamily> out;
  for (auto& [name, metric] : metrics_) {
    if (metric->series_.empty()) continue;
    std::string called = std::string(kUserMetrics) + name;
    if (metric->kind == MetricKind::kCounter && !called.ends_with("_total")) called += "_total";
    MetricFamily& family = out.emplace_back(MetricFamily{called, metric->help, metric->kind, metric->bounds, {}});
    const bool anew = forget && metric->kind != MetricKind::kGauge;
    for (auto& [labels, series] : metric->series_) {
      MetricSample& sample = family.samples.emplace_back(MetricSample{labels, 0, {}});
      for (auto& n : series.counts_) sample.counts.push_back(anew ? n.exchange(0) : n.load(std::memory_order_relaxed));
      sample.value = anew ? series.value_.exchange(0) : series.value_.load(std::memory_order_relaxed);
    }
  }
  return out;
}

std::vector<MetricFamily> MetricsRecorder::reported(bool forget) {
  const std::lock_guard lock(mutex_);
  return take(forget);
}

void MetricsRecorder::after_fork(bool in_child) {
  if (in_child) (void)take(true);
  mutex_.unlock();
}

}  // namespace shoal::actors
