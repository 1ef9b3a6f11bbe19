// role: the processes of a cluster. Other processes start them (actors/session/folder/role.h), so they are not among the verbs that people
// see.
#pragma once

#include "scheduler/cli/environment.h"

namespace CLI {
class App;
}

namespace shoal::scheduler::cli {

// Runs `shoal role NAME ..` and returns the process's exit code.
int run_role(const Environment& environment, int argc, char** argv);

// The options of a head for a store in etcd, which `shoal start` passes on.
void add_store_options(CLI::App& app, etcd::Access& access);

}  // namespace shoal::scheduler::cli
