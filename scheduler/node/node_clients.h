// The connections that others have made to a node: workers, drivers, commands and other nodes. Each has a number, in the order of arrival.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "actors/protocol/wire/node_messages.h"
#include "runtime/net/peer.h"

namespace shoal::scheduler {

struct NodeClient {
  std::unique_ptr<runtime::Peer> peer;
  WorkerId worker;  // set once the client has attached
  JobId job;
  NodeId node;  // set if the client is another node
};

class NodeClients {
 public:
  using Number = std::uint64_t;

  NodeClients(runtime::Clock& clock, runtime::PeerHandler& handler) : clock_(clock), handler_(handler) {}

  void add(std::unique_ptr<runtime::Connection> connection);
  NodeClient* find(Number number);
  // Removes a client and returns it.
  NodeClient take(Number number);
  // Closes the connections that other nodes have made, and calls `closed` for each.
  void close_nodes(const std::function<void(Number)>& closed);
  void clear() { clients_.clear(); }

  // The bytes that wait in a connection's queue; 0 if it is closed.
  std::size_t queued(Number number) const;
  void each(const std::function<void(Number, const NodeClient&)>& see) const;
  // Asks all attached processes except `but` to free memory.
  void want_room(std::uint64_t bytes, const runtime::Peer* but) const;

 private:
  runtime::Clock& clock_;
  runtime::PeerHandler& handler_;
  std::map<Number, NodeClient> clients_;
  Number next_ = 1;
};

}  // namespace shoal::scheduler
