// Whose turn it is among jobs that wait for the same nodes: that of the one that holds the smallest share of them.
//
// A share is the largest part that a job holds of anything there is (dominant resource fairness, Ghodsi et al., NSDI 2011): of ten CPUs and
// two GPUs, four CPUs and a GPU are a half. Among equal shares, and within a job, who came first is first.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/cluster/resources.h"
#include "runtime/core/id.h"

namespace shoal::scheduler {

// What each job holds: its processes outside of placement groups, and its groups' bundles.
class Shares {
 public:
  void takes(JobId job, const actors::Resources& what) { held_[job] += what; }
  void gives(JobId job, const actors::Resources& what);
  const std::map<JobId, actors::Resources>& held() const { return held_; }
  // Of what all nodes have.
  double of(JobId job, const actors::Resources& all) const;

 private:
  std::map<JobId, actors::Resources> held_;  // nothing: no entry
};

// One round: each of those that were added, once.
class Turns {
 public:
  // Shares are asked for whenever a job has had its turn.
  Turns(const Shares& shares, const actors::Resources& all) : shares_(shares), all_(all) {}
  // `index`: where it stands among all. In that order.
  void add(JobId job, std::size_t index);
  std::optional<std::size_t> next();

 private:
  struct Line {
    std::vector<std::size_t> indices;
    std::size_t next = 0;
  };
  void line_up(JobId job, const Line& line) { heads_.emplace(shares_.of(job, all_), line.indices[line.next], job); }

  const Shares& shares_;
  const actors::Resources& all_;
  std::map<JobId, Line> lines_;
  std::pair<const JobId, Line>* added_ = nullptr;           // whose line was added to last
  std::set<std::tuple<double, std::size_t, JobId>> heads_;  // (share, index, job) of all lines but the one that has its turn
  std::pair<const JobId, Line>* turn_ = nullptr;
  bool begun_ = false;
};

}  // namespace shoal::scheduler
