// Where values that are too large for a frame get their memory from.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "actors/value/shared_memory.h"
#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "runtime/shm/segment_pool.h"

namespace shoal::actors {

class ValueMemory {
 public:
  virtual ~ValueMemory() = default;
  // A descriptor of a sealed memory of at least `bytes` with these parts in it, and anything of this process between them. Nobody writes to
  // it as long as a duplicate or a mapping of it is somewhere. ResourceExhausted.
  virtual Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) = 0;
  // Of a memory that is in this process from now on, filled here or elsewhere: it may be moved to a file when memory is short.
  virtual void keeps(const std::shared_ptr<SharedMemory>&) {}
};

}  // namespace shoal::actors
