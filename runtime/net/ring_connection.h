// A Connection between two processes of one host: frames go through rings in shared memory, beside the original socket.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/socket_network.h"

namespace shoal::runtime {

// `socket` is local and not started. `calls`: this end is the caller, which offers the rings.
std::unique_ptr<Connection> make_ring_connection(Loop& loop, std::unique_ptr<Connection> socket, bool calls, const SocketOptions& options,
                                                 std::shared_ptr<Traffic> traffic);

}  // namespace shoal::runtime
