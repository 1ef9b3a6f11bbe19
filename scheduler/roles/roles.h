// The main functions of a cluster's processes: a head, a node, or both in one (tied to a driver's life, or private to torchrun's ranks).
//
// They report on `ready_fd`, unless it is negative, with a line of JSON: {"head": .., "head_local": .., "node": ..} or {"error": {code,
// reason, message, hint}}. They return the process's exit code.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/resources.h"
#include "scheduler/etcd/access.h"
#include "scheduler/web/entrypoint.h"

namespace shoal::scheduler {

// The HTTP interface of a head, on loopback.
struct HttpRole {
  bool on = false;
  std::uint16_t port = 0;
  bool or_any = false;                 // any free port when `port` is taken
  std::vector<std::string> runs = {};  // folders of runs' folders, besides SHOAL_HOME/runs
  web::Surroundings around;
};

// A head with a store in etcd is one of several. It listens once it leads; until then it is ready as soon as it has found the leader. Its
// process fails when it loses the lead, and HeadKeeper starts a candidate again (head_keeper.h).
struct HeadRole {
  std::string session;  // path of the session folder
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int ready_fd = -1;
  HttpRole http;
  std::string store;   // etcd://.. or etcds://..; "": a database in the session's folder
  bool fsync = false;  // each commit to that database waits for the disk
  etcd::Access store_access = {};
};
int run_head(const HeadRole& role);

// Limits at which a node ends workers because memory runs out (node/processes/memory_monitor.h).
struct MemoryRule {
  double threshold = 0.95;  // a share of the memory; 0 or 1: never
  std::uint64_t limit = 0;  // bytes for all its workers together; 0: the machine's memory
};

// How long a signal may stop a worker before its node ends it; 0: for ever (node/processes/stopped_workers.h).
inline constexpr std::chrono::seconds kStoppedWorkerLimit(60);

// How long a node goes on without a head; 0: for ever (node/head_absence.h). A head's host that restarts, or a repaired network, comes back
// sooner as a rule.
inline constexpr std::chrono::seconds kHeadAbsenceLimit(600);

struct NodeRole {
  std::string session;  // path of the session folder; its token is the cluster's
  std::string head;     // endpoints, tried in turn
  actors::Resources resources;
  std::map<std::string, std::string> labels;
  std::string python;       // interpreter of the warm zygote; "": no zygote
  bool keeps_head = false;  // restarts this host's head when it dies
  int ready_fd = -1;
  std::string spill_folder = {};  // folder for spilled objects; "": the session's, or one on a disk
  MemoryRule memory;
  std::chrono::seconds stopped_limit = kStoppedWorkerLimit;
  std::chrono::seconds head_absence_limit = kHeadAbsenceLimit;
  std::optional<std::uint16_t> order = {};  // this node's place in the order in which nodes get ranks
};
int run_node(const NodeRole& role);

// Head and node in one process, reachable over unix sockets only. It ends when `owner` and all attached drivers are gone.
struct LocalRole {
  std::string session;  // path of the session folder
  actors::Resources resources;
  std::map<std::string, std::string> labels;
  std::string python;
  pid_t owner = 0;
  bool remove_folder = false;  // removes the session folder with its logs at the end
  int ready_fd = -1;
  HttpRole http;
  std::string spill_folder = {};
  MemoryRule memory;
  std::chrono::seconds stopped_limit = kStoppedWorkerLimit;
};
int run_local(const LocalRole& role);

// Reports on ready_fd why a role does not start; returns its exit code.
int refuse_role(int ready_fd, const Error& error);

// This machine's resources: CPUs that this process may use, memory, GPUs.
actors::Resources detect_resources();

}  // namespace shoal::scheduler
