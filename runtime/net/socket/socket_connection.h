// A Connection over a connected, non-blocking stream socket, after its hello.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/socket/budget.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

// The parts of its network that a connection uses.
struct Uses {
  Clock& clock;  // outlives the connection
  std::shared_ptr<Budget> budget;
  std::shared_ptr<Traffic> traffic;  // counts the connection's frames
  std::unique_ptr<Budget::Account> account;
};

std::unique_ptr<Connection> make_socket_connection(Loop& loop, Fd socket, PeerIdentity identity, const SocketOptions& options, Uses uses);
// As make_socket_connection(), through a TLS session of that socket.
std::unique_ptr<Connection> make_tls_connection(Loop& loop, Fd socket, TlsSession session, PeerIdentity identity,
                                                const SocketOptions& options, Uses uses);

}  // namespace shoal::runtime
