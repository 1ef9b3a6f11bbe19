// The arithmetic of the engine, on plain memory: sums of gradients and the AdamW update. SIMD through Highway, chosen at run time.
#pragma once

#include <cstddef>
#include <span>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// out[i] = ((sources[0][i] + sources[1][i]) + ...) * scale, or added to out[i]. In this fixed order, in fp32 (in fp64 if either dtype is):
// the same bits at every call. A source may be `out` itself, if it has its dtype. bf16 and fp16 are rounded to nearest once, at the end.
void reduce(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
            std::size_t numel);

// out[i] = in[i] in another dtype, rounded to nearest, ties to even. They do not overlap.
void cast(DType dtype, const std::byte* in, DType out_dtype, std::byte* out, std::size_t numel);

struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
};

// One step (`step` counts from 1) of AdamW (Loshchilov and Hutter 2019, as torch.optim.AdamW computes it) on fp32: decoupled decay, then
// p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
void adamw(const AdamW& options, std::int64_t step, float* p, const float* g, float* m, float* v, std::size_t numel);

// What the kernel is given, each rounded to fp32 once.
struct AdamWConstants {
  float decay, one_minus_beta1, beta2, one_minus_beta2, step_size, inv_sqrt_correction2, eps;
};

const char* kernel_target();  // "AVX3", ...: what the choice was

}  // namespace shoal::fsdp
