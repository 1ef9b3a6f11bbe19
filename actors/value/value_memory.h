// The source of memory for values that are too large for a frame.
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
  // A descriptor of a sealed memory of at least `bytes` with these parts; gaps hold arbitrary bytes of this process. It is not written to
  // while a duplicate or mapping exists. ResourceExhausted.
  virtual Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) = 0;
  // Registers a memory filled here or received, which may then be spilled when memory is short.
  virtual void keeps(const std::shared_ptr<SharedMemory>&) {}
};

}  // namespace shoal::actors
