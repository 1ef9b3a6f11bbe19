// Starts a head or node process with the `role` verb of the shoal command (scheduler/roles). Reads the report that it sends once it is
// ready.
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
  std::vector<std::string> words;  // arguments of `role`: "head", "--port", "0", ..
  std::vector<std::string> env;    // the whole environment of the process
  std::string cwd = "/";           // "": this process's working directory
  Fd out, err;                     // empty: /dev/null
  runtime::Duration timeout = std::chrono::seconds(20);
};

struct StartedRole {
  pid_t pid = 0;
  std::string session;  // the session folder of a local cluster
  std::string head, head_local, node;
  std::string id;  // the id of a node
};

// Fails with the role's own error, with DeadlineExceeded, or with Unavailable if the process ended without a report. No process is left
// then.
Result<StartedRole> start_role(RoleStart start);

}  // namespace shoal::actors
