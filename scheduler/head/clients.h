// The connections of the head with its clients: nodes, drivers and commands, in order of arrival. Each connection has a number, which is
// not used again.
//
// Loop thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/net/peer.h"

namespace shoal::scheduler {

class Clients {
 public:
  struct Client {
    std::unique_ptr<runtime::Peer> peer;
    NodeId node;  // set if the client is a node
    std::uint64_t number() const { return peer->number(); }
  };

  // Listens on an endpoint, and passes the messages of each connection to `handler`. Returns the endpoint with its port, or an error that
  // names a taken endpoint. The references outlive this object.
  Result<runtime::Endpoint> listen(const runtime::Endpoint& endpoint, runtime::Network& network, runtime::Clock& clock,
                                   runtime::PeerHandler& handler) {
    SHOAL_TRY(auto listener, network.listen(endpoint, [this, &clock, &handler](std::unique_ptr<runtime::Connection> connection) {
      const std::uint64_t number = next_++;
      clients_[number].peer = std::make_unique<runtime::Peer>(std::move(connection), clock, handler, number);
    }));
    listeners_.push_back(std::move(listener));
    return listeners_.back()->endpoint();
  }
  std::vector<runtime::Endpoint> endpoints() const {
    std::vector<runtime::Endpoint> out;
    for (const auto& l : listeners_) out.push_back(l->endpoint());
    return out;
  }

  Client& at(std::uint64_t number) { return clients_.at(number); }
  Client& at(const runtime::Peer& peer) { return clients_.at(peer.number()); }
  // Removes a client and closes its connection, if that is open. Its open calls fail only after the client has left clients_.
  void close(std::uint64_t number) { const auto owned = clients_.extract(number); }

 private:
  std::vector<std::unique_ptr<runtime::Listener>> listeners_;
  std::map<std::uint64_t, Client> clients_;
  std::uint64_t next_ = 1;
};

}  // namespace shoal::scheduler
