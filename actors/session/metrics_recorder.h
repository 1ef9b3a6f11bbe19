// What a process's users measure: counters, gauges and histograms, until somebody asks for them. Nothing is sent from here.
//
// Recording is an atomic addition; any thread may record and ask. A series, once there, stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "runtime/core/result.h"

namespace shoal::actors {

class MetricsRecorder {
 public:
  static constexpr std::size_t kMaxSeries = 2000;  // a histogram is one for each of its buckets

  class Series {
   public:
    Series(MetricSample::Labels labels, std::size_t buckets) : labels_(std::move(labels)), counts_(buckets) {}
    void add(double value) { value_.fetch_add(value, std::memory_order_relaxed); }
    void set(double value) { value_.store(value, std::memory_order_relaxed); }
    void observe(double value, const std::vector<double>& bounds);

   private:
    friend class MetricsRecorder;
    const MetricSample::Labels labels_;
    std::atomic<double> value_{0};
    std::deque<std::atomic<std::uint64_t>> counts_;
  };

  class Metric {
   public:
    Metric(MetricKind k, std::string n, std::string h, std::vector<double> b)
        : kind(k), name(std::move(n)), help(std::move(h)), bounds(std::move(b)) {}
    const MetricKind kind;
    const std::string name, help;
    const std::vector<double> bounds;

   private:
    friend class MetricsRecorder;
    std::map<MetricSample::Labels, Series> series_;
  };

  // The name is [a-zA-Z_][a-zA-Z0-9_]*. The same one again is the same metric: InvalidArgument when it was of another kind, or has other
  // bounds (finite, ascending).
  Result<Metric*> metric(MetricKind kind, const std::string& name, const std::string& help, std::vector<double> bounds = {});
  // Null when there are kMaxSeries already. Labels that Shoal itself gives are called exported_.. here, as Prometheus does it.
  Series* series(Metric& metric, MetricSample::Labels labels);

  // Of the names that users see: shoal_user_NAME, of counters with _total at the end. `forget`: counters and histograms begin again.
  std::vector<MetricFamily> told(bool forget = false);
  // In a forked child: what its parent counted is the parent's.
  void forget_after_fork();

 private:
  std::vector<MetricFamily> take(bool forget);

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Metric>> metrics_;
  std::size_t size_ = 0;
};

// Whether samples may have a label of this name: Prometheus keeps __.. and a histogram's "le" for itself.
bool is_label(const std::string& name);

}  // namespace shoal::actors
