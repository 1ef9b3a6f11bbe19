// Starts a process of a cluster, with a program's `role` command (scheduler/roles), and reads its report once it is ready.
//
// Blocks the calling thread for at most `timeout`; no loop is needed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/loop/clock.h"

namespace shoal::actors {

struct RoleStart {
  std::string program;             // the shoal command
  std::vector<std::string> words;  // "head", "--port", "0", ..
  std::vector<std::string> env;    // the whole environment
  std::string cwd = "/";           // "" keeps this process's
  Fd out, err;                     // empty: /dev/null
  runtime::Duration timeout = std::chrono::seconds(20);
};

struct StartedRole {
  pid_t pid = 0;
  std::string session;  // folder of a local cluster
  std::string head, head_local, node;
  std::string id;  // a node's
};

// Errors: the role's own reason; DeadlineExceeded, or Unavailable when it ended without a report. No process is left then.
Result<StartedRole> start_role(RoleStart start);

}  // namespace shoal::actors
