// Chooses a transport for a group of ranks.
#pragma once

#include <memory>

#include "runtime/transport/communicator.h"
#include "runtime/transport/communicator_request.h"

namespace shoal::runtime {

// Makes this rank's Communicator with the first of `nccl`, `memory`, `messages` and `bytes` that the request has. Returns InvalidArgument
// if it has none, or if its rank is outside of the group. Every rank makes the call. With shared memory the call does not wait for the
// other ranks; with other transports it may.
Result<std::shared_ptr<Communicator>> make_communicator(CommunicatorRequest request, std::shared_ptr<Clock> clock);

}  // namespace shoal::runtime
