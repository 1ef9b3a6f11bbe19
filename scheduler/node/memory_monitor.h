// Ends a worker when the host is nearly out of memory, before the kernel does, one at a time and with a reason. Loop thread only.
//
// The decisions are pure functions (whom_to_end, would_help, next_look); the monitor measures, acts and remembers. It looks less often the
// farther away the threshold is. Workers are measured only beyond it and beside the loop, as a walk through page tables takes time.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/core/result.h"
#include "runtime/log/log.h"
#include "runtime/loop/clock.h"
#include "runtime/process/memory_limit.h"
#include "runtime/process/process.h"

namespace shoal::scheduler {

// A process that may be ended: one that hosts an actor or runs functions, never a driver.
struct MemoryUser {
  WorkerId worker;
  std::string who;  // "actor Counter"
  pid_t pid = 0;
  JobId job;
  bool run_again = false;   // its work is retried
  std::uint64_t order = 0;  // order of starts
  std::uint64_t bytes = 0;
};

// Workers whose work is retried go first. Among them one of the job that has most of them here, and of those the one started last, which
// loses least. A worker with less than a hundredth of `limit`, and less than 256 MiB, goes only if all have so little. (Like Ray, with jobs
// for its owners.)
std::optional<std::size_t> whom_to_end(const std::vector<MemoryUser>& users, std::uint64_t limit);

// Returns true if these workers fill the memory: to end them would bring it below the threshold, and they have a twentieth of `limit`.
bool would_help(const std::vector<MemoryUser>& users, std::uint64_t used, std::uint64_t threshold_bytes, std::uint64_t limit);

// The time until memory could exceed the threshold if filled at full speed, within bounds.
runtime::Duration next_look(std::uint64_t used, std::uint64_t threshold_bytes);

class MemoryMonitor {
 public:
  struct Options {
    double threshold = 0;                                        // share of the memory; 0, or 1 and more: no monitor
    std::uint64_t limit = 0;                                     // bytes for all workers together; 0: the machine's memory counts
    std::string where = "node";                                  // "node 10.0.0.1", for texts
    runtime::Duration at_end = std::chrono::milliseconds(100);   // interval until a killed worker has ended
    runtime::Duration coming_back = std::chrono::seconds(2);     // until an ended worker's memory is back: its children may end later
    runtime::Duration in_vain = std::chrono::seconds(5);         // interval while no worker can be ended
    runtime::Duration kernel_memory = std::chrono::seconds(20);  // time for which a kill by the kernel may be a worker's
    std::function<runtime::MachineMemory()> machine;             // empty: no monitor
    // Receives the bytes of each process, or 0 if unknown, on the loop, at once or later.
    using Measured = std::function<void(std::vector<std::uint64_t>)>;
    std::function<void(std::vector<pid_t>, Measured)> measure;
    std::function<std::uint64_t()> kernel_kills;
  };
  using Users = std::function<std::vector<MemoryUser>()>;  // `bytes` not set
  using Kill = std::function<void(WorkerId)>;

  MemoryMonitor(runtime::Clock& clock, runtime::Log log, Options options, Users users, Kill kill);
  void start();

  // The cause of a process's end if it was a lack of memory. `asked`: its end was requested otherwise.
  std::optional<Error> cause_of_end(WorkerId worker, const std::string& who, pid_t pid, const runtime::ExitStatus& status, bool asked);

 private:
  void look();
  void measure(std::function<void(std::vector<MemoryUser>)> then);  // passes those that still run
  void judge(std::uint64_t used, std::uint64_t limit, std::vector<MemoryUser> users);
  bool comes_back(std::uint64_t used) const;
  std::uint64_t threshold_of(std::uint64_t limit) const;
  void forget_old_kills();
  void again(runtime::Duration pause);

  runtime::Clock& clock_;
  const runtime::Log log_;
  const Options options_;
  const Users users_;
  const Kill kill_;
  runtime::Timer looking_;
  std::optional<std::pair<WorkerId, Error>> ending_;  // killed, and not ended yet
  struct Awaited {
    std::uint64_t used = 0;  // upper bound once enough of the last one's memory is back
    runtime::TimePoint until;
  };
  std::optional<Awaited> awaited_;
  bool in_vain_ = false;                           // logged already
  std::uint64_t kills_ = 0;                        // kernel kills that are attributed or given up
  std::optional<runtime::TimePoint> kills_since_;  // time of the first kernel kill not attributed yet
};

std::string bytes_text(std::uint64_t bytes);  // "1.20 GiB", "34.0 MiB"

}  // namespace shoal::scheduler
