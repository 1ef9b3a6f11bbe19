#include "runtime/transport/choice/make_communicator.h"

#include <fmt/format.h>

#include "runtime/transport/messages/message_communicator.h"
#include "runtime/transport/nccl/nccl_communicator.h"
#include "runtime/transport/process_group/backend_communicator.h"
#include "runtime/transport/shm/shm_communicator.h"

namespace shoal::runtime {

Result<std::shared_ptr<Communicator>> make_communicator(CommunicatorRequest request, std::shared_ptr<Clock> clock) {
  if (request.world_size < 1) return fail(invalid_argument(fmt::format("a group of {} ranks", request.world_size)));
  if (request.rank < 0 || request.rank >= request.world_size)
    return fail(invalid_argument(fmt::format("rank {} of a group of {}", request.rank, request.world_size)));
  if (request.nccl) {
    auto of_hosts = request;
    of_hosts.nccl.reset();
    of_hosts.interrupted = nullptr;  // the thread that watches NCCL waits here, which the program's signals must not end
    SHOAL_TRY(auto control, make_communicator(std::move(of_hosts), clock));
    return NcclCommunicator::make(std::move(request), std::move(clock), std::move(control));
  }
  if (request.memory) return ShmCommunicator::make(std::move(request), std::move(clock));
  if (request.messages) return MessageCommunicator::make(std::move(request), std::move(clock));
  if (request.bytes) return BackendCommunicator::make(request);
  return fail(invalid_argument(fmt::format("the ranks of group '{}' share no memory and have no other transport", request.name)));
}

}  // namespace shoal::runtime
