// The arithmetic of collectives, on memory of this process.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/transport/reduce_op.h"

namespace shoal::runtime {

// out[i] = sources[0][i] op sources[1][i] op ..., in this order, so that every call and rank gets the same bits. Both bf16 and fp16 are
// computed in fp32 and rounded to nearest once, at the end; integers wrap around. The op kAvg divides by the number of sources. `out` may
// be one of the sources. Needs no alignment, but a combination that check_reducible accepts.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out, std::size_t numel);

}  // namespace shoal::runtime
