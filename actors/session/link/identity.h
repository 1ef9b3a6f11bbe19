// This process's names in its cluster. Session::open sets them; afterwards they are constant, and any thread reads them.
#pragma once

#include <string>

#include "runtime/core/id.h"

namespace shoal::actors {

struct Identity {
  JobId job;
  WorkerId worker;
  NodeId node;
  std::string folder;            // the cluster's session folder
  std::string host;              // this host's address for other hosts
  bool owns_job = false;         // the process is a driver whose job ends with it
  bool started_by_node = false;  // the process is a worker, or a submitted program
};

}  // namespace shoal::actors
