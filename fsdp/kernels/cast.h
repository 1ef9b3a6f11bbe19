// Conversion between the floating-point types of parameters, gradients and optimizer states.
#pragma once

#include <cstddef>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// out[i] = in[i] as `to`, rounded to nearest, ties to even; NaN stays NaN, what is too large becomes an infinity, subnormals are kept.
// Between fp64 and the 16-bit types the way leads through fp32, as in torch. `in` and `out` do not overlap, or are the same address and
// types of one size. Integers and bool are only copied: to another dtype they are a programmer's error.
void cast(DType from, const std::byte* in, DType to, std::byte* out, std::size_t numel);

}  // namespace shoal::fsdp
