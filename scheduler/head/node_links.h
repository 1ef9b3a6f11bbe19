// The head's connections to nodes, at most one for each node, and its requests over them.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "actors/protocol/wire/method.h"
#include "runtime/core/id.h"
#include "runtime/log/log.h"
#include "runtime/net/peer.h"

namespace shoal::scheduler {

class NodeLinks {
 public:
  struct Options {
    runtime::Duration call_timeout{};   // time limit of a node's answer
    runtime::Duration start_timeout{};  // time limit of the start of a process
  };
  using Callback = std::function<void(Result<runtime::Message>)>;
  // The reason of the error if a request did not reach its node.
  static constexpr const char* kNotReached = "NotReached";

  NodeLinks(runtime::Log log, Options options) : log_(std::move(log)), options_(options) {}
  // Calls that fail later, because this head's connections are destroyed, are ignored: they say nothing about a node.
  ~NodeLinks() { *alive_ = false; }

  bool contains(NodeId node) const { return links_.contains(node); }
  // The node's connection, or null.
  const runtime::Peer* find(NodeId node) const;
  // Sets the node's connection. Returns the number of the one that it replaces, if there was one.
  std::optional<std::uint64_t> set(NodeId node, runtime::Peer& peer);
  // Forgets the node's connection and returns its number.
  std::optional<std::uint64_t> drop(NodeId node);
  // Forgets a connection that has closed. Returns false if it is not the node's present one.
  bool closed(NodeId node, const runtime::Peer& peer);

  // Sends a request to the node. Without a callback, a failure is only logged.
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
