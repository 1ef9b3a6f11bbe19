// A rank's view of its group in shared memory: the ranks that have joined, left or died, and the group's first failure.
//
// The node records deaths on the membership page. A group that was formed again also watches the former generation's page until all ranks
// have joined. The death of a rank that has not joined yet is recorded only there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/shm/memory.h"
#include "runtime/transport/shm/ledger.h"
#include "runtime/transport/shm/shm_memory.h"

namespace shoal::runtime {

class ShmGroup {
 public:
  // The former generation, whose ranks `ranks` are this group's, in order.
  struct Former {
    std::shared_ptr<Mapping> mapping;
    std::vector<int> ranks;
  };

  ShmGroup(std::shared_ptr<Mapping> mapping, ShmMemory::Shape shape, int rank, std::optional<Former> former);

  int rank() const { return rank_; }
  int world_size() const { return memory_.shape().world_size; }
  const ShmMemory& memory() const { return memory_; }
  Ledger& ledger() const { return ledger_; }
  // Wakes the waiting threads of all ranks.
  void notify_all() { page_.notify_all(); }
  MembershipPage::WaitResult wait_until(const std::function<bool()>& done, std::chrono::nanoseconds limit, int spins) {
    return page_.wait_until(done, limit, spins);
  }

  void join();
  std::vector<int> lost() const;
  // The ranks of the next generation, in order: the first caller's choice, for all ranks.
  std::vector<int> agree_on_survivors();
  // The former generation of the group of these ranks.
  Former as_former(std::vector<int> ranks) const { return {mapping_, std::move(ranks)}; }

  // How a rank's process ended; nullopt while the node has not recorded its end.
  std::optional<std::string> death(int rank) const;
  // The group's failure, as the error of an operation.
  Error failure_in(const std::string& operation) const;

  // ---- the driving thread only ----
  // Returns true once all ranks have joined; met() is its last result.
  bool meet();
  bool met() const { return met_; }
  int first_absent() const;  // a rank that has not joined yet, or -1
  // True when the group has failed; a rank that died without leave() fails it.
  bool has_failed();

 private:
  int first_lost() const;  // a rank that died without leave(), or -1

  const std::shared_ptr<Mapping> mapping_;
  const ShmMemory memory_;
  const int rank_;
  MembershipPage page_;
  mutable Ledger ledger_;
  std::optional<Former> former_;  // until all ranks have joined
  bool met_ = false;
};

}  // namespace shoal::runtime
