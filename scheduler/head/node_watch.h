// Finds proof that a node's process has ended: as a process of this host, or because its host refuses a connection to its port.
//
// Loop thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "runtime/net/connection.h"
#include "scheduler/state/cluster_state.h"

namespace shoal::scheduler {

class NodeWatch {
 public:
  struct Options {
    std::vector<runtime::Endpoint> listen;  // the endpoints of the head
    runtime::Duration probe_timeout{};      // time limit of a connection that checks whether a node still listens
    // Calls the function when a process of this host ends. May be empty.
    std::function<std::shared_ptr<void>(pid_t, std::function<void()>)> watch_process;
  };
  struct Events {
    std::function<bool(NodeId)> connected;  // true if the node has a connection to the head
    std::function<void(NodeId)> gone;
  };

  // The references outlive this object.
  NodeWatch(runtime::Network& network, const ClusterState& state, Options options, Events events);
  ~NodeWatch() { *alive_ = false; }

  // Watches a node's process, which is on this host.
  void watch(NodeId id, pid_t pid);
  // Watches the process of a node that has joined over TCP, if it is on this host.
  void watch_if_near(const actors::RegisterNode& node);
  // To be called when the connection of a node broke.
  void missing(NodeId node) { missing_.insert(node); }
  // Checks whether the nodes whose connection broke still listen.
  void check();

 private:
  runtime::Network& network_;
  const ClusterState& state_;
  const Options options_;
  const Events events_;
  std::set<NodeId> missing_;                           // nodes whose connection broke
  std::set<NodeId> probed_;                            // those of missing_ that are being checked
  std::map<NodeId, std::shared_ptr<void>> processes_;  // watches, each of which outlives its node's connection
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
