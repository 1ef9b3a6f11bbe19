// The engine's arithmetic on plain memory: sums of gradients. SIMD through Highway, chosen at run time.
#pragma once

#include <cstddef>
#include <span>

#include "fsdp/kernels/cast.h"
#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// The values of one rank, or the sum of a block of ranks that begins at `rank` (layout/hosts.h).
struct Source {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  int rank = 0;
};

// out[i] = (sum of sources[..][i]) * scale, or added to out[i]. Sources are in the order of their ranks, at most 64. Additions follow an
// aligned binary tree over ranks: ((0 + 1) + (2 + 3)) + ((4 + 5) + ..); a rank without a source is left out. They are in fp32 (fp64 if any
// dtype is), so every call gives the same bits, also where some ranks were added up before. A source may be `out` itself, if the dtypes
// match. bf16 and fp16 are rounded to nearest once, at the end.
void reduce(std::span<const Source> sources, double scale, bool accumulate, DType out_dtype, std::byte* out, std::size_t numel);

const char* kernel_target();  // the instruction set in use: "AVX3", ...

}  // namespace shoal::fsdp
