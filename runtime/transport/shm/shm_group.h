// A rank's view of its group in shared memory: the ranks that have joined, left or died, and the group's first failure.
//
// The node records deaths on the membership page. After reform(), a group also watches the page of the former generation until all ranks
// have joined. The death of a rank that has not joined yet is recorded only there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/shm/memory.h"
#include "runtime/transport/shm/direct_reads.h"
#include "runtime/transport/shm/ledger.h"
#include "runtime/transport/shm/shm_memory.h"

namespace shoal::runtime {

class ShmGroup {
 public:
  // The generation before this one. `ranks`: for each rank of this group, its number in that generation.
  struct Former {
    std::shared_ptr<Mapping> mapping;
    std::vector<int> ranks;
  };

  ShmGroup(std::shared_ptr<Mapping> mapping, ShmMemory::Shape shape, int rank, std::optional<Former> former);

  int rank() const { return rank_; }
  int world_size() const { return memory_.shape().world_size; }
  const ShmMemory& memory() const { return memory_; }
  Ledger& ledger() const { return ledger_; }
  DirectReads& direct_reads() { return direct_reads_; }
  // Wakes the waiting threads of all ranks, by the membership page.
  void notify_all() { page_.notify_all(); }
  // Sleeps until ready(), at most for `limit`. Returns false after that.
  bool wait_until(const std::function<bool()>& ready, std::chrono::nanoseconds limit) {
    return page_.wait_until(ready, limit, 0) == MembershipPage::WaitResult::kReady;
  }

  void join();
  std::vector<int> lost() const;
  // Returns the ranks that form the next generation, in order. The first caller of any rank chooses them, for all ranks.
  std::vector<int> agree_on_survivors();
  // This group as the former generation of the group that `ranks` form.
  Former as_former(std::vector<int> ranks) const { return {mapping_, std::move(ranks)}; }

  // The cause of the end of a rank's process; nullopt while the node has not recorded an end.
  std::optional<std::string> death(int rank) const;
  // The group's failure as the error of an operation, which is named in its context.
  Error failure_in(const std::string& operation) const;

  // ---- the driving thread only ----
  // Returns true once all ranks have joined. Afterwards met() does, without a check.
  bool meet();
  bool met() const { return met_; }
  int first_absent() const;  // a rank that has not joined yet; -1: all have
  // True once the group has failed. A rank that has died without leave() makes it fail.
  bool has_failed();

 private:
  int first_lost() const;  // a rank that has died without leave(); -1: none

  const std::shared_ptr<Mapping> mapping_;
  const ShmMemory memory_;
  const int rank_;
  MembershipPage page_;
  mutable Ledger ledger_;
  DirectReads direct_reads_;
  std::optional<Former> former_;  // set until all ranks have joined
  bool met_ = false;
};

}  // namespace shoal::runtime
