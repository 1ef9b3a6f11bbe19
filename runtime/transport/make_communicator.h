// The one place that chooses a transport for a group of ranks.
#pragma once

#include <memory>

#include "runtime/transport/communicator.h"
#include "runtime/transport/communicator_request.h"

namespace shoal::runtime {

// Makes this rank's Communicator of the first transport in the request. Returns InvalidArgument if there is none, or no such rank. Every
// rank calls it; shared memory does not wait for the other ranks, other transports may.
Result<std::shared_ptr<Communicator>> make_communicator(CommunicatorRequest request, std::shared_ptr<Clock> clock);

}  // namespace shoal::runtime
