// The head's connections to nodes, one for each node, and its requests to them.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "actors/wire/method.h"
#include "runtime/core/id.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"

namespace shoal::scheduler {

class NodeLinks {
 public:
  struct Options {
    runtime::Duration call_timeout{};   // for a node's answer
    runtime::Duration start_timeout{};  // for the start of a process
  };
  using Callback = std::function<void(Result<runtime::Message>)>;
  // The reason of requests that did not reach their node.
  static constexpr const char* kNotReached = "NotReached";

  NodeLinks(runtime::Log log, Options options) : log_(std::move(log)), options_(options) {}
  ~NodeLinks() { *alive_ = false; }  // calls that fail as connections close are no news of a node

  bool contains(NodeId node) const { return links_.contains(node); }
  // The node's connection, or null.
  const runtime::Peer* find(NodeId node) const;
  // Sets the node's connection. Returns the number of the connection that it replaces.
  std::optional<std::uint64_t> set(NodeId node, runtime::Peer& peer);
  // Forgets the node's connection and returns its number.
  std::optional<std::uint64_t> drop(NodeId node);
  // Forgets a connection that has closed. Returns false if it is not the node's.
  bool closed(NodeId node, const runtime::Peer& peer);

  // Without a callback, a failure is logged.
  void call(NodeId node, actors::Method method, Bytes body, Callback callback = {});
  void notify(NodeId node, actors::Method method) const;
  void notify_all(actors::Method method, const Bytes& body) const;

 private:
  const runtime::Log log_;
  const Options options_;
  std::map<NodeId, runtime::Peer*> links_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace shoal::scheduler
