// A small process beside a node: when the node is killed, the guard ends all that the node had started, and what that had started in its
// process group. A daemon that made a session of its own is its user's.
//
// Workers die with their node by themselves (PR_SET_PDEATHSIG); their children, of which nobody here knows, do not. The guard knows the
// process groups. It holds one end of a pipe and nothing else; the node's end, in whatever way, closes the other.
#pragma once

#include <sys/types.h>

#include <memory>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::scheduler {

class Guard {
 public:
  // Forks: to be called while this process has one thread.
  static Result<std::unique_ptr<Guard>> start();
  ~Guard();  // its process ends, and with it every group that is still there
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // From now on the group that `leader` leads ends with this process; until forget().
  void watch(pid_t leader) { tell(leader); }
  void forget(pid_t leader) { tell(-leader); }
  pid_t pid() const { return pid_; }

 private:
  Guard(pid_t pid, Fd pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void tell(pid_t word);

  const pid_t pid_;
  Fd pipe_;
};

}  // namespace shoal::scheduler
