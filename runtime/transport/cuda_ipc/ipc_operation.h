// An operation as one rank calls it, with NCCL's meanings.
#pragma once

#include "runtime/transport/nccl/api/nccl_dtype.h"

namespace shoal::runtime {

struct IpcOperation {
  enum class Kind { kAllGather, kReduceScatter, kAllReduce, kReduce, kBroadcast, kSend, kReceive } kind;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;
  NcclType type = 0;
  NcclOp op = 0;
  int other = -1;  // root, or the other rank of a message
  CudaStream stream = nullptr;

  bool message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  std::size_t bytes() const { return count * dtype_bytes(dtype_of(type)); }
};

}  // namespace shoal::runtime
