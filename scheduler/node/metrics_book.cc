#include "scheduler/node/metrics_book.h"

#include <numeric>

namespace shoal::scheduler {

using actors::MetricFamily;
using actors::MetricKind;
using actors::MetricSample;
using actors::MetricSums;

MetricSample::Labels MetricsBook::labels(const Origin& origin) { return {{"job_id", to_string(origin.job)}, {"role", origin.role}}; }

bool MetricsBook::lasts(const MetricFamily& family) { return family.kind == MetricKind::kCounter || family.kind == MetricKind::kHistogram; }

void MetricsBook::told(WorkerId worker, const Origin& origin, std::vector<MetricFamily> families) {
  if (families.empty() && !told_.contains(worker)) return;
  told_[worker] = {origin, std::move(families)};
}

void MetricsBook::ended(WorkerId worker) {
  const auto node = told_.extract(worker);
  if (node.empty()) return;
  const Told& last = node.mapped();
  const JobId job = last.origin.job;
  auto& sums = ended_.try_emplace(job, kMaxEndedSeries).first->second;
  for (const MetricFamily& family : last.families) {
    if (lasts(family)) sums.add(family, labels(last.origin));
  }
  std::erase(ended_order_, job);
  ended_order_.push_back(job);
  const auto series = [&] {
    return std::accumulate(ended_.begin(), ended_.end(), std::size_t{0},
                           [](std::size_t n, const auto& e) { return n + e.second.series(); });
  };
  while (ended_order_.size() > 1 && series() > kMaxEndedSeries) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

MetricSums MetricsBook::sums(const std::set<WorkerId>& silent) const {
  MetricSums out;
  for (const auto& [job, ended] : ended_) {
    for (const MetricFamily& family : ended.families()) out.add(family);
  }
  for (const auto& [worker, told] : told_) {
    for (const MetricFamily& family : told.families) {
      if (!lasts(family) && silent.contains(worker)) continue;
      auto ours = labels(told.origin);
      if (family.kind == MetricKind::kGauge) {
        ours.emplace_back("pid", std::to_string(told.origin.pid));
        ours.emplace_back("worker", to_string(worker));
      }
      out.add(family, ours);
    }
  }
  return out;
}

}  // namespace shoal::scheduler
