// The processes of a cluster, each a main: a head, a node, or both in one (embedded in a driver's life, or private to
// torchrun's ranks).
//
// They report on `ready_fd`, if it is one, with a line of JSON: {"head": .., "head_local": .., "node": ..} or {"error":
// {code, reason, message, hint}}, and return the process's exit code.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "actors/cluster/resources.h"
#include "scheduler/etcd/access.h"
#include "scheduler/web/entrypoint.h"

namespace shoal::scheduler {

// The HTTP interface of a head, on loopback.
struct HttpRole {
  bool on = false;
  std::uint16_t port = 0;
  bool or_any = false;  // any free port when that one is taken
  web::Surroundings around;
};

// One whose store is in etcd is one of several: it listens once it leads, and until then it is ready when it knows who does. Its process
// fails when it cannot lead any more; whoever starts it again has one that waits (head_keeper.h).
struct HeadRole {
  std::string session;  // folder
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int ready_fd = -1;
  HttpRole http;
  std::string store;   // etcd://.. or etcds://..; "": in the session's folder
  bool fsync = false;  // of that one: each commit waits for the disk
  etcd::Access store_access = {};
};
int run_head(const HeadRole& role);

// When a node ends workers because memory runs out (node/memory_monitor.h).
struct MemoryRule {
  double threshold = 0.95;  // a share of the memory; 0 or 1: never
  std::uint64_t limit = 0;  // bytes that its workers may have together, instead of what the machine has; 0: that
};

struct NodeRole {
  std::string session;  // folder; its token is the cluster's
  std::string head;     // endpoints, tried in turn
  actors::Resources resources;
  std::map<std::string, std::string> labels;
  std::string python;       // of the warm zygote; "" keeps none
  bool keeps_head = false;  // starts this host's head again when it dies
  int ready_fd = -1;
  std::string spill_folder = {};  // for objects that memory is short of; "": the session's, or one on a disk
  MemoryRule memory;
};
int run_node(const NodeRole& role);

// Head and node in one process, reached over unix sockets only. It ends when `owner`, and whoever attached besides, is
// gone.
struct LocalRole {
  std::string session;  // folder
  actors::Resources resources;
  std::map<std::string, std::string> labels;
  std::string python;
  pid_t owner = 0;
  bool remove_folder = false;  // at the end: nobody will look at its logs
  int ready_fd = -1;
  HttpRole http;
  std::string spill_folder = {};
  MemoryRule memory;
};
int run_local(const LocalRole& role);

// Says on ready_fd why a role does not start; returns its exit code.
int refuse_role(int ready_fd, const Error& error);

// What this machine has: CPUs this process may use, memory, GPUs.
actors::Resources detect_resources();

}  // namespace shoal::scheduler
