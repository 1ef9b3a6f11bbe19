// A small process beside a node. When the node is killed, the guard ends all that the node started, and what that started in its process
// group. It spares daemons that made a session of their own.
//
// Workers die with their node by themselves (PR_SET_PDEATHSIG), their children do not. The guard has a list of the process groups. It holds
// one end of a pipe and nothing else; the other end closes with the node's process, however that ends.
#pragma once

#include <sys/types.h>

#include <memory>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::scheduler {

class Guard {
 public:
  // Forks: the caller's process must have a single thread.
  static Result<std::unique_ptr<Guard>> start();
  ~Guard();  // ends its process and every group still there
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // The group of `leader` ends with this process, until forget().
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
