// The arithmetic of the engine, on plain memory: sums of gradients, casts. SIMD through Highway, chosen at run time.
#pragma once

#include <cstddef>
#include <span>

#include "fsdp/kernels/cast.h"
#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// out[i] = ((sources[0][i] + sources[1][i]) + ...) * scale, or added to out[i]. In this fixed order, in fp32 (in fp64 if either dtype is):
// the same bits at every call. A source may be `out` itself, if it has its dtype. bf16 and fp16 are rounded to nearest once, at the end.
void reduce(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
            std::size_t numel);

const char* kernel_target();  // "AVX3", ...: what the choice was

}  // namespace shoal::fsdp
