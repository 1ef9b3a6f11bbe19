// Kills a worker when the host is nearly out of memory, before the kernel does. Workers are killed one at a time, with a reason in the
// error. Loop thread only.
//
// The decisions are pure functions (whom_to_end, would_help, next_check); the monitor measures, acts and remembers. It measures less often
// the farther away the threshold is. It measures workers only above the threshold and beside the loop, since a walk through page tables
// takes time.
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

// A process that may be killed: it hosts an actor or runs functions, and is never a driver.
struct MemoryUser {
  WorkerId worker;
  std::string who;  // as in texts for users: "actor Counter"
  pid_t pid = 0;
  JobId job;
  bool run_again = false;   // its function or actor runs again elsewhere
  std::uint64_t order = 0;  // number of its start, larger for later starts
  std::uint64_t bytes = 0;
};

// The worker to be killed. First come workers whose work runs again. Among them one of the job that has most such workers here, and of
// these the one started last, which loses least. A worker with less than a hundredth of `limit`, and less than 256 MiB, is chosen only if
// all have so little. (Ray chooses in the same order, by owners instead of jobs.)
std::optional<std::size_t> whom_to_end(const std::vector<MemoryUser>& users, std::uint64_t limit);

// Returns true if it helps to kill workers. Without `users`, memory would be below the threshold, and together they use at least a
// twentieth of `limit`.
bool would_help(const std::vector<MemoryUser>& users, std::uint64_t used, std::uint64_t threshold_bytes, std::uint64_t limit);

// The shortest time in which memory could exceed the threshold, if it is filled at full speed; within bounds.
runtime::Duration next_check(std::uint64_t used, std::uint64_t threshold_bytes);

class MemoryMonitor {
 public:
  struct Options {
    double threshold = 0;        // share of the memory above which a worker is killed; 0, or 1 and more: no monitor
    std::uint64_t limit = 0;     // bytes for all workers together; 0: the memory of the machine
    std::string where = "node";  // the node in error texts, such as "node 10.0.0.1"
    runtime::Duration at_end = std::chrono::milliseconds(100);  // interval between checks while a killed worker has not ended
    // How long to wait until the memory of an ended worker is free: its children may end later.
    runtime::Duration coming_back = std::chrono::seconds(2);
    runtime::Duration in_vain = std::chrono::seconds(5);  // interval between checks while no worker can be killed
    // How long a kill by the kernel may belong to a worker whose end is not reported yet.
    runtime::Duration kernel_memory = std::chrono::seconds(20);
    std::function<runtime::MachineMemory()> machine;  // measures the machine; empty: no monitor
    // Called on the loop, at once or later, with the bytes of each process; 0 if unknown.
    using Measured = std::function<void(std::vector<std::uint64_t>)>;
    std::function<void(std::vector<pid_t>, Measured)> measure;
    std::function<std::uint64_t()> kernel_kills;
  };
  using Users = std::function<std::vector<MemoryUser>()>;  // returns the users without `bytes`
  using Kill = std::function<void(WorkerId)>;

  MemoryMonitor(runtime::Clock& clock, runtime::Log log, Options options, Users users, Kill kill);
  void start();

  // The cause of a process's end if it was a lack of memory. `requested`: the end was requested for another reason.
  std::optional<Error> cause_of_end(WorkerId worker, const std::string& who, pid_t pid, const runtime::ExitStatus& status, bool requested);

 private:
  void check();
  void measure(std::function<void(std::vector<MemoryUser>)> then);  // passes users that have not ended meanwhile
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
  std::optional<std::pair<WorkerId, Error>> ending_;  // the worker that was killed and has not ended yet, with the cause
  struct Awaited {
    // Once less than this is in use, enough of the killed worker's memory is free.
    std::uint64_t used = 0;
    runtime::TimePoint until;
  };
  std::optional<Awaited> awaited_;
  bool in_vain_ = false;  // a warning that no worker can be killed is logged already
  // Number of the kernel's kills that were attributed, to workers or to other processes.
  std::uint64_t kills_ = 0;
  // When the first kill by the kernel was found that is not in kills_ yet.
  std::optional<runtime::TimePoint> kills_since_;
};

std::string bytes_text(std::uint64_t bytes);  // such as "1.20 GiB" or "34.0 MiB"

}  // namespace shoal::scheduler
