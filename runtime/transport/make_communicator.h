// Chooses a transport for a group of ranks.
#pragma once

#include <memory>

#include "runtime/transport/communicator.h"
#include "runtime/transport/communicator_request.h"

namespace shoal::runtime {

// Makes this rank's Communicator with the first transport that the request has. Returns InvalidArgument if there is none, or no such rank.
// Every rank makes the call. It does not wait for the other ranks with shared memory, but may with other transports.
Result<std::shared_ptr<Communicator>> make_communicator(CommunicatorRequest request, std::shared_ptr<Clock> clock);

}  // namespace shoal::runtime
