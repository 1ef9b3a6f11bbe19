// Metrics of a process's user code: counters, gauges and histograms, until they are collected. This class sends nothing.
//
// Recording is an atomic addition; any thread may record and collect. A series is never removed.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "runtime/core/result.h"

namespace shoal::actors {

class MetricsRecorder {
 public:
  // Number of series; a histogram needs one per bucket.
  static constexpr std::size_t kMaxSeries = 2000;

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

  // Returns the metric of this name ([a-zA-Z_][a-zA-Z0-9_]*), which is made at the first call. Returns InvalidArgument if it has another
  // kind or other bounds (finite, ascending).
  Result<Metric*> metric(MetricKind kind, const std::string& name, const std::string& help, std::vector<double> bounds = {});
  // The series of a metric with these labels, made at the first call. Null beyond kMaxSeries. A label that Shoal itself sets is renamed
  // exported_.., as Prometheus does.
  Series* series(Metric& metric, MetricSample::Labels labels);

  // Returns all metrics under their public names: shoal_user_NAME, counters with _total. `forget`: counters and histograms restart at zero.
  std::vector<MetricFamily> reported(bool forget = false);
  // Around a fork, in the thread that forks. No other thread changes the metrics meanwhile, so the child's copy is whole and unlocked.
  void before_fork() { mutex_.lock(); }
  // The child discards the parent's counts.
  void after_fork(bool in_child);

 private:
  std::vector<MetricFamily> take(bool forget);

  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Metric>> metrics_;
  std::size_t size_ = 0;
};

// True for a valid name of a label. Prometheus reserves names that begin with "__", and a histogram's "le".
bool is_label(const std::string& name);

}  // namespace shoal::actors
