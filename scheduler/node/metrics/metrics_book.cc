#include "scheduler/node/metrics/metrics_book.h"

#include <algorithm>

#include "scheduler/node/metrics/reported_metrics.h"

namespace shoal::scheduler {

using actors::MetricFamily;
using actors::MetricKind;
using actors::MetricSample;
using actors::MetricSums;

MetricSample::Labels MetricsBook::labels(const Origin& origin) { return {{"job_id", to_string(origin.job)}, {"role", origin.role}}; }

bool MetricsBook::lasts(const MetricFamily& family) { return family.kind == MetricKind::kCounter || family.kind == MetricKind::kHistogram; }

void MetricsBook::reported(WorkerId worker, const Origin& origin, std::vector<MetricFamily> families) {
  left_out_ += leave_unreadable(families);
  if (families.empty() && !reported_.contains(worker)) return;
  reported_[worker] = {origin, std::move(families)};
}

void MetricsBook::left(WorkerId worker) {
  const auto at = reported_.find(worker);
  if (at != reported_.end()) std::erase_if(at->second.families, [](const MetricFamily& family) { return !lasts(family); });
}

void MetricsBook::ended(WorkerId worker) {
  const auto node = reported_.extract(worker);
  if (node.empty()) return;
  const Reported& last = node.mapped();
  const JobId job = last.origin.job;
  auto& sums = ended_.try_emplace(job, kMaxEndedSeries).first->second;
  const auto left_out = sums.left_out();
  for (const MetricFamily& family : last.families) {
    if (lasts(family)) sums.add(family, labels(last.origin));
  }
  left_out_ += sums.left_out() - left_out;
  forget_old();
}

void MetricsBook::over(JobId job) {
  if (std::find(over_.begin(), over_.end(), job) != over_.end()) return;
  over_.push_back(job);
  forget_old();
}

void MetricsBook::forget_old() {
  const auto series = [this](JobId job) {
    const auto at = ended_.find(job);
    return at == ended_.end() ? 0 : at->second.series();
  };
  std::size_t all = 0;
  for (const JobId job : over_) all += series(job);
  // Ended jobs without series are limited in number, too.
  while (over_.size() > 1 && (all > kMaxOverSeries || over_.size() > kMaxOverSeries)) {
    all -= series(over_.front());
    ended_.erase(over_.front());
    over_.pop_front();
  }
}

MetricSums MetricsBook::sums(const std::set<WorkerId>& silent) const {
  // Living processes come first, so what conflicts with their metrics is left out.
  MetricSums out(kMaxSeries);
  for (const auto& [worker, reported] : reported_) {
    for (const MetricFamily& family : reported.families) {
      if (!lasts(family) && silent.contains(worker)) continue;
      auto ours = labels(reported.origin);
      if (family.kind == MetricKind::kGauge) {
        ours.emplace_back("pid", std::to_string(reported.origin.pid));
        ours.emplace_back("worker", to_string(worker));
      }
      out.add(family, ours);
    }
  }
  for (const auto& [job, ended] : ended_) {
    for (const MetricFamily& family : ended.families()) out.add(family);
  }
  return out;
}

}  // namespace shoal::scheduler
