// What the processes of a node have measured: the last that each told, and what those that have ended left behind. So what is counted never
// falls when one ends. Pure.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/cluster/metrics.h"
#include "runtime/core/id.h"

namespace shoal::scheduler {

class MetricsBook {
 public:
  static constexpr std::size_t kMaxOverSeries = 2'000;    // of jobs that are over; beyond it those go that are so for longest
  static constexpr std::size_t kMaxEndedSeries = 10'000;  // of a job's processes that have ended; what comes then is left out

  static constexpr std::size_t kMaxSeries = 10'000;  // of all processes together, of those that live first

  struct Origin {
    JobId job;
    std::string role;
    pid_t pid = 0;
  };
  // All that it measured since it began, instead of what it told before; but for what Prometheus could not read, or was not the process's
  // to tell (told_metrics.h), which is counted.
  void told(WorkerId worker, const Origin& origin, std::vector<actors::MetricFamily> families);
  // It may live, but is no part of the cluster now: its gauges and levels are of nothing.
  void left(WorkerId worker);
  // What it told last is all there will be.
  void ended(WorkerId worker);
  // The job is; its processes are about to be. Said again: nothing.
  void over(JobId job);

  // Counters and histograms of all processes, with job_id and role; gauges of those that are not `silent`, with pid and worker, too; levels
  // of these with job_id and role.
  actors::MetricSums sums(const std::set<WorkerId>& silent) const;
  // Samples that were told, and not taken, since the node began.
  std::uint64_t left_out() const { return left_out_; }

 private:
  struct Told {
    Origin origin;
    std::vector<actors::MetricFamily> families;
  };
  static actors::MetricSample::Labels labels(const Origin& origin);
  static bool lasts(const actors::MetricFamily& family);
  void forget_old();

  std::map<WorkerId, Told> told_;
  std::map<JobId, actors::MetricSums> ended_;
  std::uint64_t left_out_ = 0;
  std::deque<JobId> over_;  // the first that was comes first
};

}  // namespace shoal::scheduler
