// The connection of a generation's ranks by NCCL: the device of each rank, and the id of the communicator.
#pragma once

#include "runtime/transport/communicator.h"
#include "runtime/transport/nccl/nccl_channel.h"

namespace shoal::runtime {

struct ConnectOptions {
  std::string name;  // the group's name
  Duration timeout{};
  std::function<bool()> interrupted;  // polled; true ends the wait
};

// Connects all ranks of `control`, which make this call together. If one rank fails, `control` fails on all.
Result<NcclChannel> connect_by_nccl(const NcclApi& api, std::shared_ptr<const Device> device, Communicator& control, const Clock& clock,
                                    const ConnectOptions& options);

}  // namespace shoal::runtime
