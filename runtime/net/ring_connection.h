// A Connection of two processes of one host whose frames go through rings in shared memory, beside the socket that made it.
#pragma once

#include <memory>

#include "runtime/net/connection.h"
#include "runtime/net/socket_network.h"

namespace shoal::runtime {

// `socket` is local and not started. The one that calls offers the rings.
std::unique_ptr<Connection> make_ring_connection(Loop& loop, std::unique_ptr<Connection> socket, bool calls, const SocketOptions& options,
                                                 std::shared_ptr<Traffic> traffic);

}  // namespace shoal::runtime
