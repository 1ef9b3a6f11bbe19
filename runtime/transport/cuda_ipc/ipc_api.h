// Copies between the devices of one host's processes, behind the table of NCCL's functions: several ranks may have one device, which NCCL
// refuses. The communicator of runtime/transport/nccl then compares calls, keeps time limits and ends failures, as with NCCL itself.
#pragma once

#include "runtime/transport/cuda_ipc/ipc_comm.h"

namespace shoal::runtime {

// The table of this process. Its functions get no argument for the driver and the options, so the first call decides on both.
const NcclApi& cuda_ipc_api(const CudaApi& cuda, const IpcComm::Options& options);

// Frees the memory that ended communicators have kept because another rank might still use it. Returns the number of communicators that are
// left. `overdue`: as in IpcComm::try_close.
std::size_t sweep_cuda_ipc(bool overdue = false);

}  // namespace shoal::runtime
