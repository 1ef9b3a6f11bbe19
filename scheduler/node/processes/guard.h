// A small process beside a node, for the case that the node is killed. It then ends the process groups of all workers that the node
// started. It spares daemons, which have made a session of their own.
//
// Workers end with their node by themselves (PR_SET_PDEATHSIG), but their children do not. The guard has a list of the workers' process
// groups. Its only descriptor is the end of a pipe, whose other end closes with the node's process, however that ends.
#pragma once

#include <sys/types.h>

#include <memory>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"

namespace shoal::scheduler {

class Guard {
 public:
  // Forks this process, which must have a single thread.
  static Result<std::unique_ptr<Guard>> start();
  ~Guard();  // ends the guard's process and every group on its list
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Adds the process group of `leader` to the guard's list, until forget().
  void watch(pid_t leader) { send(leader); }
  void forget(pid_t leader) { send(-leader); }
  pid_t pid() const { return pid_; }

 private:
  Guard(pid_t pid, Fd pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void send(pid_t word);

  const pid_t pid_;
  Fd pipe_;
};

}  // namespace shoal::scheduler
