// Finds proof that a node's process is gone: the end of a process of this host, or a refused connection to where the node listened.
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
    std::vector<runtime::Endpoint> listen;  // the head's
    runtime::Duration look_timeout{};       // for a connection that checks whether a node still listens
    // Calls back when a process of this host ends. May be empty.
    std::function<std::shared_ptr<void>(pid_t, std::function<void()>)> watch_process;
  };
  struct Events {
    std::function<bool(NodeId)> connected;  // to the head
    std::function<void(NodeId)> gone;
  };

  // The references outlive the watch.
  NodeWatch(runtime::Network& network, const ClusterState& state, Options options, Events events);
  ~NodeWatch() { *alive_ = false; }

  // Watches a process of this host.
  void watch(NodeId id, pid_t pid);
  // Watches the process of a node that joined over TCP but runs on this host.
  void watch_if_near(const actors::RegisterNode& node);
  // The connection of a node broke.
  void missing(NodeId node) { missing_.insert(node); }
  // Checks the nodes whose connection broke.
  void look();

 private:
  runtime::Network& network_;
  const ClusterState& state_;
  const Options options_;
  const Events events_;
  std::set<NodeId> missing_;                           // nodes whose connection broke
  std::set<NodeId> looked_for_;                        // missing nodes with a check under way
  std::map<NodeId, std::shared_ptr<void>> processes_;  // a watch outlives a connection
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
