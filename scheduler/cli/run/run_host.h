// One host's part in a run: the first host starts the head and the script, the others join it. Each ends with the script's exit code, and
// ends what it has started.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"
#include "scheduler/cli/run/allocation.h"
#include "scheduler/cli/run/run_folder.h"

namespace shoal::scheduler::cli {

struct RunOptions {
  LaunchOptions launch;
  std::string interface;  // network interface of this host; "": Shoal chooses one
  std::uint16_t port = 0;
  std::string folder;           // the run's folder; "": one that is named after the run
  bool trainer = false;         // the script makes a Trainer, and runs once
  double join_timeout_s = 300;  // how long to wait until all hosts are there
  double grace_s = 20;          // from a signal to the end of this command; schedulers often kill after 30
  bool data_tls = false;
  bool dry_run = false, list_variables = false;
  std::vector<std::string> words;  // SCRIPT [ARGS], or CMD; a host that joins needs none
  bool command = false;            // `words` were given after --, so they are a command and no script
};

// The exit code that means: do not repeat this command.
inline constexpr int kDoNotRetry = 93;

// The numeric addresses to which a name resolves.
std::vector<std::string> addresses_of(const std::string& name);

struct RunHost {
  const Common& common;
  const RunOptions& options;
  const Allocation& allocation;
  std::uint32_t num_ranks;  // on this host
  RunFolder& folder;
  bool name_resolves;  // this host's name resolves to addresses of it that others reach, and to no other
};

// Returns the exit code. Call watch_run_signals() before.
int run_host(const RunHost& host);

}  // namespace shoal::scheduler::cli
