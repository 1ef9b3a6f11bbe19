// The metrics of a node's processes: the latest of each, and the remains of those that have ended, so that counters never fall. Pure.
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
  static constexpr std::size_t kMaxOverSeries = 2'000;    // total for ended jobs; the first ended go first
  static constexpr std::size_t kMaxEndedSeries = 10'000;  // for a job's ended processes; further series are left out

  static constexpr std::size_t kMaxSeries = 10'000;  // for all processes, living ones first

  struct Origin {
    JobId job;
    std::string role;
    pid_t pid = 0;
  };
  // Replaces a process's metrics by all that it measured since it began. Samples that Prometheus could not read, or that a process may not
  // report (reported_metrics.h), are dropped and counted.
  void reported(WorkerId worker, const Origin& origin, std::vector<actors::MetricFamily> families);
  // The process may live, but has left the cluster: its gauges and levels are dropped.
  void left(WorkerId worker);
  // The process ended: its last counters and histograms are final.
  void ended(WorkerId worker);
  // The job ended; its processes are about to. Repeated calls do nothing.
  void over(JobId job);

  // Counters and histograms of all processes, by job_id and role. Gauges of those that are not `silent` have pid and worker as well; their
  // levels are by job_id and role.
  actors::MetricSums sums(const std::set<WorkerId>& silent) const;
  // Reported samples that were dropped since the node began.
  std::uint64_t left_out() const { return left_out_; }

 private:
  struct Reported {
    Origin origin;
    std::vector<actors::MetricFamily> families;
  };
  static actors::MetricSample::Labels labels(const Origin& origin);
  static bool lasts(const actors::MetricFamily& family);
  void forget_old();

  std::map<WorkerId, Reported> reported_;
  std::map<JobId, actors::MetricSums> ended_;
  std::uint64_t left_out_ = 0;
  std::deque<JobId> over_;  // in order of their ends
};

}  // namespace shoal::scheduler
