// Ends a worker before the kernel has to: when the host is nearly out of memory, one at a time, and says why. Loop thread only.
//
// What is decided is pure (whom_to_end, would_help, next_look); the monitor looks, asks and remembers. It looks the less often the farther
// away the threshold is, and at workers only beyond it, beside the loop: a walk through their page tables takes its time.
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
  bool run_again = false;   // what it runs is run again
  std::uint64_t order = 0;  // of its start
  std::uint64_t bytes = 0;
};

// Those whose work is run again go first; of them one of the job that has most of them here; of those the one that was started last, as it
// has least to lose. Who has less than a hundredth of `limit`, and than 256 MiB, is ended only when nobody has more. (As Ray's, which goes
// by owners: ours are jobs.)
std::optional<std::size_t> whom_to_end(const std::vector<MemoryUser>& users, std::uint64_t limit);

// Whether what these have together is what fills the memory: enough to bring it below the threshold, and a twentieth of it.
bool would_help(const std::vector<MemoryUser>& users, std::uint64_t used, std::uint64_t threshold_bytes, std::uint64_t limit);

// Until memory could be beyond the threshold, were it filled as fast as one can; within bounds.
runtime::Duration next_look(std::uint64_t used, std::uint64_t threshold_bytes);

class MemoryMonitor {
 public:
  struct Options {
    double threshold = 0;        // a share of the memory; 0, or 1 and more: no monitor
    std::uint64_t limit = 0;     // bytes that workers of this node may have together, instead of what the machine has; 0: that
    std::string where = "node";  // "node 10.0.0.1", for texts
    runtime::Duration at_end = std::chrono::milliseconds(100);   // looks for the end of one that was killed
    runtime::Duration coming_back = std::chrono::seconds(2);     // what an ended one had: its children may end after it
    runtime::Duration in_vain = std::chrono::seconds(5);         // after there was nobody to be ended
    runtime::Duration kernel_memory = std::chrono::seconds(20);  // for which a kill by the kernel may be a worker's
    std::function<runtime::MachineMemory()> machine;             // none: no monitor
    // What each of these has, or 0; told on the loop, at once or later.
    using Measured = std::function<void(std::vector<std::uint64_t>)>;
    std::function<void(std::vector<pid_t>, Measured)> measure;
    std::function<std::uint64_t()> kernel_kills;
  };
  using Users = std::function<std::vector<MemoryUser>()>;  // without their bytes
  using Kill = std::function<void(WorkerId)>;

  MemoryMonitor(runtime::Clock& clock, runtime::Log log, Options options, Users users, Kill kill);
  void start();

  // Of a process that ended: why, if it was for want of memory. `asked`: somebody else wanted its end.
  std::optional<Error> cause_of_end(WorkerId worker, const std::string& who, pid_t pid, const runtime::ExitStatus& status, bool asked);

 private:
  void look();
  void measure(std::function<void(std::vector<MemoryUser>)> then);  // those that are still there then
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
  std::optional<std::pair<WorkerId, Error>> ending_;  // was killed, and is not gone yet
  struct Awaited {
    std::uint64_t used = 0;  // or less, once enough of what the last one had is back
    runtime::TimePoint until;
  };
  std::optional<Awaited> awaited_;
  bool in_vain_ = false;                           // was said already
  std::uint64_t kills_ = 0;                        // of the kernel's, that were told or were nobody's here
  std::optional<runtime::TimePoint> kills_since_;  // there are some of which nobody ended yet
};

std::string bytes_text(std::uint64_t bytes);  // "1.20 GiB", "34.0 MiB"

}  // namespace shoal::scheduler
