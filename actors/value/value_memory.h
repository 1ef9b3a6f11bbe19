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
  // Returns a descriptor of a sealed memory of at least `bytes` bytes with these parts; gaps have arbitrary bytes of this process. The
  // memory is not written again while a duplicate or mapping exists. Returns ResourceExhausted if there is no room.
  virtual Result<Fd> fill(std::size_t bytes, std::span<const runtime::SegmentPool::Part> parts) = 0;
  // Registers a memory that this process has filled or received. It may then be moved to a file when memory is short.
  virtual void keeps(const std::shared_ptr<SharedMemory>&) {}
};

}  // namespace shoal::actors
