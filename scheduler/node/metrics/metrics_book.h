// The metrics of a node's processes: the latest of each living process, and the sums of those that have ended, so that counters never fall.
// Pure.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/protocol/cluster/metrics.h"
#include "runtime/core/id.h"

namespace shoal::scheduler {

class MetricsBook {
 public:
  static constexpr std::size_t kMaxOverSeries = 2'000;    // series of all ended jobs; jobs that ended first are dropped
  static constexpr std::size_t kMaxEndedSeries = 10'000;  // series of a job's ended processes; further ones are left out

  static constexpr std::size_t kMaxSeries = 10'000;  // series in the result; those of living processes come first

  struct Origin {
    JobId job;
    std::string role;
    pid_t pid = 0;
  };
  // Takes a process's metrics, which replace its earlier ones: they cover the time since it began. Drops and counts samples that Prometheus
  // could not read, or that a process may not report (reported_metrics.h).
  void reported(WorkerId worker, const Origin& origin, std::vector<actors::MetricFamily> families);
  // Drops the gauges and levels of a process that has left the cluster, even if the process lives.
  void left(WorkerId worker);
  // Makes the last counters and histograms of a process final, since it has ended.
  void ended(WorkerId worker);
  // Notes that a job ended and its processes are about to end. Repeated calls do nothing.
  void over(JobId job);

  // The metrics of all processes. Counters, histograms and levels (gauges that add up) are summed by job_id and role; other gauges have the
  // labels pid and worker. `silent`: processes that did not answer this scrape, whose gauges and levels are left out as outdated.
  actors::MetricSums sums(const std::set<WorkerId>& silent) const;
  // The number of reported samples that were dropped since the node began.
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
  std::deque<JobId> over_;  // ended jobs that have metrics, in the order of their ends
};

}  // namespace shoal::scheduler
