// The engine's arithmetic on plain memory: sums of gradients. SIMD through Highway, chosen at run time.
#pragma once

#include <cstddef>
#include <span>

#include "fsdp/kernels/cast.h"
#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// out[i] = ((sources[0][i] + sources[1][i]) + ...) * scale, or added to out[i]. The order is fixed, in fp32 (fp64 if either dtype is), so
// every call gives the same bits. A source may be `out` itself, if the dtypes match. bf16 and fp16 are rounded to nearest once, at the end.
void reduce(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
            std::size_t numel);

const char* kernel_target();  // the instruction set in use: "AVX3", ...

}  // namespace shoal::fsdp
