// The hosts of a `shoal run`, and which of them this one is, by the variables of the scheduler that started the command on every host.
// Pure: variables and options in, a decision or a refusal out.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "scheduler/cli/environment.h"

namespace shoal::scheduler::cli {

// The kind of fact that a variable states.
enum class LaunchFact {
  kNodeRank,       // this host's number, from 0; host 0 leads
  kNumNodes,       // the number of hosts
  kNodeBounds,     // the same, or the least and the greatest number: 2:8
  kNodes,          // the names or addresses of all hosts, in the order of their numbers
  kLeader,         // the name or address of host 0, perhaps with a port
  kNumRanks,       // ranks per host; 0 says nothing
  kNumProcesses,   // processes that the scheduler started on all hosts: as many as there are hosts
  kLocalRank,      // this process's number on its host, which has to be 0
  kLocalSize,      // processes that the scheduler started on this host, which has to be 1
  kRun,            // a part of the run's name
  kBatchNumNodes,  // the number of hosts of a batch job; this process may be its script, and no step of it (kStep)
  kStep,           // shows that this process is a step of a batch job
  kPod,            // the name of a pod of an indexed Job: NAME-NUMBER
};

// A variable that `shoal run` reads. No other place names these variables.
struct LaunchVariable {
  const char* name;
  const char* system;
  LaunchFact fact;
  const char* meaning;
};

// All variables, in the order of precedence: of two that state the same fact, the first one counts.
std::span<const LaunchVariable> launch_variables();

// The facts of the command line. Options come before variables.
struct LaunchOptions {
  std::vector<std::string> nodes = {};              // --hosts
  std::optional<std::uint32_t> node_rank = {};      // --node-rank
  std::optional<std::uint32_t> num_nodes = {};      // --nnodes
  std::optional<std::uint32_t> min = {}, max = {};  // hosts of an elastic run
  std::string leader = {};                          // --master-addr
  std::optional<std::uint32_t> num_ranks = {};      // --nproc; not set: auto
  bool joins = false;                               // --join
};

// Names and addresses of this host.
struct OwnNames {
  std::string host;                    // gethostname()
  std::string domain;                  // "": none
  std::vector<std::string> addresses;  // numeric addresses of this host
  // The position in `nodes` of the LaunchOptions whose name resolves to an address of this host, if exactly one does.
  std::optional<std::uint32_t> resolved;
};

// True if `node` is this host's name, or an address of it.
bool names_host(const std::string& node, const OwnNames& own);

struct Allocation {
  std::uint32_t node_rank = 0;                 // a host that joins: its position among those that join with it
  std::uint32_t min_nodes = 1, max_nodes = 1;  // the run begins with at least min_nodes
  bool elastic = false;                        // min and max were given, by options or by variables
  bool joins = false;                          // comes later than the hosts of the beginning, from a job of its own
  std::string leader;                          // host 0; "": not known
  std::vector<std::string> nodes;              // all hosts; empty: not known
  std::optional<std::uint32_t> num_ranks;      // per host; not set: as many as the host has GPUs, or 1
  std::string run;                             // a name that all hosts know, and other runs lack; "": none
  std::vector<std::string> taken;              // "NAME=VALUE", variables and options that the decision rests on
  bool leads() const { return node_rank == 0 && !joins; }
};

// Refuses values that contradict each other (reason Contradiction; the message names both), and values that cannot be read (BadValue).
Result<Allocation> decide_allocation(const LaunchOptions& options, const Environment& environment, const OwnNames& own);

// The names in a list of Slurm, such as "gpu[01-03,7],login": gpu01, gpu02, gpu03, gpu7, login.
Result<std::vector<std::string>> expand_nodelist(const std::string& list);

}  // namespace shoal::scheduler::cli
