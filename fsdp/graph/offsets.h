// Where buffers that live during a part of a step lie in one block: planned once, so that a step allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/order.h"

namespace shoal::fsdp {

// In use from when node `first` begins until node `last` has ended; last -1: longer than the step.
struct Buffer {
  std::size_t bytes = 0;
  std::int32_t first = 0;
  std::int32_t last = -1;
};

struct Offsets {
  std::vector<std::size_t> of;  // by buffer, multiples of 64
  std::size_t bytes = 0;        // of the block
};

// Two buffers share bytes only where the graph says that one is done with before the other begins, however its lanes run. The largest are
// placed first, each as low as it fits (a greedy interval colouring; not the smallest block in every case).
Offsets place(const StepGraph& graph, const std::vector<Buffer>& buffers);

}  // namespace shoal::fsdp
