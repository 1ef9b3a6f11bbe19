// Processes: starting one, watching for its end, ending it with all its descendants.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

class Loop;

// How a process ended. `known` is false for a process that is not a child of this one: only the end itself is visible then.
struct ExitStatus {
  bool known = true;
  int code = 0;    // exit code
  int signal = 0;  // signal that killed it, or 0
  bool operator==(const ExitStatus&) const = default;

  bool ok() const { return known && code == 0 && signal == 0; }
  std::string to_string() const;  // "exited with code 3", "was killed by SIGKILL", "ended"
  // The shell's exit code: the code, or 128 + signal. An unknown end counts as SIGKILL, not as success.
  int shell_code() const { return !known ? 128 + 9 : signal ? 128 + signal : code; }
};

struct SpawnSpec {
  std::vector<std::string> argv;  // argv[0] is a path, or a name on PATH
  std::vector<std::string> env;   // the whole environment: "NAME=value"
  std::string cwd;                // "": this process's folder
  Fd in, out, err;                // empty: /dev/null for in, this process's streams for the others
  std::vector<Fd> inherited;      // descriptors for the child, at 3, 4, ...
  bool dies_with_parent = true;   // the end of the spawning thread ends the child (PR_SET_PDEATHSIG), so spawn from the main thread
  int death_signal = SIGKILL;     // the signal for that
  std::vector<int> ignored;       // signals that the child ignores, unless it handles them; SIGTERM ends any other child
};

// Starts a child that leads a session and process group of its own, so that signal_group reaches all its descendants there. Returns
// InvalidArgument or NotFound if the program cannot be run; no process remains then.
Result<pid_t> spawn(SpawnSpec spec);

// True if this process ignores the signal: as a rule, because its parent decided so when it started it.
bool is_ignored(int signal);

// Blocks until a child has ended and reaps it; returns nullopt after `limit`. For children that no loop watches.
std::optional<ExitStatus> wait_exit(pid_t child, std::chrono::nanoseconds limit);

// Blocks until a first line arrives in a pipe, and returns it without its newline. Returns DeadlineExceeded after `limit`, Unavailable at
// the end of the stream or beyond max_bytes.
Result<std::string> read_line(const Fd& pipe, std::size_t max_bytes, std::chrono::nanoseconds limit);

// Signals the process group that `leader` leads; no effect if the group is gone.
void signal_group(pid_t leader, int signal);

// Raises the soft limit of descriptors to the hard limit, because each large value takes one descriptor.
void raise_descriptor_limit();

// Makes this process the parent of orphaned descendants (PR_SET_CHILD_SUBREAPER), so that it can reap workers forked by a
// zygote.
void become_subreaper();

// Returns a process's start time since boot, in clock ticks; with the pid it identifies a process uniquely. 0: no such process, or a
// zombie.
std::uint64_t start_time(pid_t pid);

// True if a signal (SIGSTOP and the like) has stopped the process, and no debugger.
bool is_stopped(pid_t pid);

// True if the process with this pid and start time has ended, all of its threads included.
bool has_ended(pid_t pid, std::uint64_t start_time);

// Calls `ended` once on the loop when the process has ended, and reaps a child. It uses a pidfd, and tries again while the system has no
// descriptor left. Destruction cancels the call.
class ProcessWatch {
 public:
  ProcessWatch(Loop& loop, pid_t pid, std::function<void(ExitStatus)> ended);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

std::string signal_name(int signal);  // "SIGKILL"

}  // namespace shoal::runtime
