// A Connection over a connected, non-blocking stream socket, after its hello.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/socket/socket_network.h"
#include "runtime/net/tls/tls.h"

namespace shoal::runtime {

// The connection counts its frames in `traffic`, shared with the network's other connections.
std::unique_ptr<Connection> make_socket_connection(Loop& loop, Fd socket, PeerIdentity identity, const SocketOptions& options,
                                                   std::shared_ptr<Traffic> traffic);
// The same through a TLS session of that socket.
std::unique_ptr<Connection> make_tls_connection(Loop& loop, Fd socket, TlsSession session, PeerIdentity identity,
                                                const SocketOptions& options, std::shared_ptr<Traffic> traffic);

}  // namespace shoal::runtime
