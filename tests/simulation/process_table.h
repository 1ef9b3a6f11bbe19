// The processes of a simulated world: their pids, and a callback when one ends.
//
// Owned by the cluster; outlives everything in it. Loop thread only.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "runtime/sim/sim_world.h"

namespace shoal::simulation {

class ProcessTable {
 public:
  explicit ProcessTable(runtime::SimWorld& world) : world_(world) {}

  pid_t start();
  void ended(pid_t pid);
  // Calls `gone` once, a moment after the process ends, also if it has ended already. Destroying the returned object cancels that.
  std::shared_ptr<void> watch(pid_t pid, std::function<void()> gone);

 private:
  struct Watch {
    pid_t pid;
    std::function<void()> gone;
    runtime::Timer process_report;
  };
  void tell(Watch& watch);

  runtime::SimWorld& world_;
  pid_t next_ = 1000;
  std::set<pid_t> alive_;
  std::map<std::uint64_t, std::weak_ptr<Watch>> watches_;
  std::uint64_t next_watch_ = 1;
};

}  // namespace shoal::simulation
