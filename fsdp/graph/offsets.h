// Offsets in one block for buffers that live during a part of a step. Planned once, so a step allocates nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/order.h"

namespace shoal::fsdp {

// A buffer in use from the begin of node `first` to the end of node `last`; with `last` -1 it stays in use after the step.
struct Buffer {
  std::size_t bytes = 0;
  std::int32_t first = 0;
  std::int32_t last = -1;
};

struct Offsets {
  std::vector<std::size_t> by_buffer;  // offsets in the block, multiples of 64
  std::size_t bytes = 0;               // size of the block
};

// Two buffers share bytes only if the graph orders the end of one before the begin of the other. The largest are placed first, each as low
// as it fits (greedy interval colouring; not always the smallest block).
Offsets place(const StepGraph& graph, const std::vector<Buffer>& buffers);

}  // namespace shoal::fsdp
