// The arithmetic of collectives, on plain memory.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/transport/dtype.h"

namespace shoal::runtime {

// out[i] = sources[0][i] op sources[1][i] op ..., in this order: the same bits at every call, on every rank. bf16 and fp16 are computed
// in fp32 and rounded to nearest once, at the end; integers wrap around. kAvg divides by the number of sources. `out` may be one of the
// sources. Of what check_reducible allows; no alignment is needed.
void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out, std::size_t numel);

}  // namespace shoal::runtime
