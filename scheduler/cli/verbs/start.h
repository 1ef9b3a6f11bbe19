// start: starts a cluster, or adds a node to one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/cli/cluster.h"

namespace shoal::scheduler::cli {

class CommandLine;

// Limits at which a node ends a worker, or itself. One that is not set comes from the environment, or is the default.
struct NodeLimits {
  double memory_threshold = -1;          // -1: not set
  std::optional<unsigned> head_absence;  // seconds; 0: never
};

struct StartOptions {
  bool head = false;
  std::string host;            // listening address of a head, public address of a joining node; "": loopback, or detected
  std::string interface;       // the network interface of `host`, by name or address; "": not chosen
  bool data_tls = false;       // data between hosts travels in TLS only
  std::string dashboard_host;  // "": loopback
  std::uint16_t port = 7460;
  double num_cpus = -1, num_gpus = -1, memory = -1;  // -1: all of the machine's
  NodeLimits limits;
  std::vector<std::string> resources;  // NAME=AMOUNT
  std::vector<std::string> labels;     // NAME=VALUE
  std::string store;                   // etcd://.. or etcds://..; "": a database in the session's folder
  etcd::Access store_access;
  std::string authority;               // tls folder of another head; "": a new authority
  std::string durability = "process";  // "process": commits survive the head's death; "fsync": also a power cut
  std::string spill_folder;            // folder for spilled objects; "": the node's choice
  bool http = true;
  std::optional<std::uint16_t> http_port;  // unset: 8265, or any free one
  bool block = false;                      // stay until a signal, the cluster's end or the node's end, then end the started processes
};
int start(const Common& common, const StartOptions& options);

void add_start(CommandLine& line);

}  // namespace shoal::scheduler::cli
