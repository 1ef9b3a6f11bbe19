// Conversion between the floating-point types of parameters, gradients and optimizer states.
#pragma once

#include <cstddef>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// out[i] = in[i] as `to`, rounded to nearest, ties to even. NaN stays NaN, overflow becomes infinity, subnormals are kept. Between fp64 and
// the 16-bit types values pass through fp32, as in torch. `in` and `out` are disjoint, or the same address with types of one size. Integers
// and bool can only be copied; casting them to another dtype is a programming error.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::size_t numel);

}  // namespace shoal::fsdp
