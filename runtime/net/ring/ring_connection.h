// A Connection between two processes of one host: frames go through rings in shared memory, beside the original socket.
#pragma once

#include <memory>

#include "runtime/net/connection.h"

namespace shoal::runtime {

class Loop;

// Processes of one host that call each other often (Role::kWorker) exchange frames through shared memory.
struct RingOptions {
  std::size_t bytes = 256u << 10;   // per direction, a power of two >= 4 KiB; unused pages take no memory. 0: no rings
  std::uint32_t after_frames = 16;  // the caller's frames before it offers rings
};

// `socket` is local and not started. `calls`: this end is the caller, which offers the rings. The connection closes once more than
// `max_queued_bytes` wait for a peer that does not read.
std::unique_ptr<Connection> make_ring_connection(Loop& loop, std::unique_ptr<Connection> socket, bool calls, const RingOptions& options,
                                                 std::size_t max_queued_bytes, std::shared_ptr<Traffic> traffic);

}  // namespace shoal::runtime
