// The order of turns among jobs that wait for the same nodes: the job with the smallest share goes first.
//
// A share is the largest fraction that a job holds of any resource (dominant resource fairness, Ghodsi et al., NSDI 2011). A job with four
// of ten CPUs and one of two GPUs has the share 1/2. Among equal shares, and within a job, the earlier request goes first.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/protocol/cluster/resources.h"
#include "runtime/core/id.h"
#include "scheduler/state/placement/resource_sums.h"

namespace shoal::scheduler {

// Resources held by each job: by its processes outside of placement groups, and by its groups' bundles.
class Shares {
 public:
  void takes(JobId job, const actors::Resources& what) { held_[job] += what; }
  void gives(JobId job, const actors::Resources& what);
  const std::map<JobId, ResourceSums>& held() const { return held_; }
  // The job's share of `all`, the sum over all nodes.
  double dominant(JobId job, const ResourceSums& all) const;

 private:
  std::map<JobId, ResourceSums> held_;  // no entry for jobs that hold nothing
};

// One round, in which each added entry has one turn.
class FairShareQueue {
 public:
  // Reads a job's share anew after each of its turns.
  FairShareQueue(const Shares& shares, const ResourceSums& all) : shares_(shares), all_(all) {}
  // `index`: the entry's position in the queue. Callers add in ascending order.
  void add(JobId job, std::size_t index);
  std::optional<std::size_t> next();

 private:
  struct Line {
    std::vector<std::size_t> indices;
    std::size_t next = 0;
  };
  void line_up(JobId job, const Line& line) { heads_.emplace(shares_.dominant(job, all_), line.indices[line.next], job); }

  const Shares& shares_;
  const ResourceSums& all_;
  std::map<JobId, Line> lines_;
  std::pair<const JobId, Line>* added_ = nullptr;           // the job that add() named last, and its line
  std::set<std::tuple<double, std::size_t, JobId>> heads_;  // (share, index, job) of the next entry of every line but turn_'s
  std::pair<const JobId, Line>* turn_ = nullptr;
  bool begun_ = false;
};

}  // namespace shoal::scheduler
