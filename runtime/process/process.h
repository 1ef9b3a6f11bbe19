// Processes: starting one, hearing of its end from the kernel, ending it with all it started.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

class Loop;

// How a process ended. Unknown for a process that is not our child: then only the end itself is known.
struct ExitStatus {
  bool known = true;
  int code = 0;    // when it exited
  int signal = 0;  // when it was killed
  bool operator==(const ExitStatus&) const = default;

  bool ok() const { return known && code == 0 && signal == 0; }
  std::string to_string() const;  // "exited with code 3", "was killed by SIGKILL", "ended"
  // As a shell says it: the code, or 128 + signal. What is unknown is no success: as if it had been killed.
  int shell_code() const { return !known ? 128 + 9 : signal ? 128 + signal : code; }
};

struct SpawnSpec {
  std::vector<std::string> argv;  // argv[0] is a path, or a name to be looked for on PATH
  std::vector<std::string> env;   // all of it: "NAME=value"
  std::string cwd;                // "" keeps this process's
  Fd in, out, err;                // empty: /dev/null for in, this process's own for the others
  std::vector<Fd> inherited;      // descriptors that the child gets at 3, 4, ...
  bool dies_with_parent = true;   // SIGKILL when this process ends (PR_SET_PDEATHSIG); set it only from the main thread
};

// The child leads a session and process group of its own, so that end_group reaches all it starts.
// InvalidArgument or NotFound when the program cannot be run: the child reports it before exec, nothing is left behind.
Result<pid_t> spawn(SpawnSpec spec);

// Blocks until a child has ended and reaps it; nothing after `limit`. For processes of ours that no loop watches.
std::optional<ExitStatus> wait_exit(pid_t child, std::chrono::nanoseconds limit);

// Blocks for the first line that somebody writes into a pipe, without its newline. DeadlineExceeded; Unavailable at the end of the stream
// or beyond max_bytes.
Result<std::string> read_line(const Fd& pipe, std::size_t max_bytes, std::chrono::nanoseconds limit);

// Signals the process group that `leader` leads. Gone already: nothing.
void signal_group(pid_t leader, int signal);

// As many descriptors as the system allows this process: each large value that it holds is one.
void raise_descriptor_limit();

// Processes whose parent ends become our children (PR_SET_CHILD_SUBREAPER): workers forked by a zygote report their
// death to us.
void become_subreaper();

// Seconds since boot at which a process started, in clock ticks: with the pid, it names a process for good. 0 when
// there is none, or only a zombie.
std::uint64_t start_time(pid_t pid);

// Calls `ended` once on the loop when the process is gone (pidfd; while none can be had, it tries again). Destroyed: not any more. A child
// is reaped.
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
