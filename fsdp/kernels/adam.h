// Adam and AdamW, fused: each array is read once and written once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "fsdp/kernels/elementwise.h"
#include "fsdp/kernels/optim_constants.h"

namespace shoal::fsdp {

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool decoupled = true;  // true: AdamW's decay of the parameter; false: Adam's, added to the gradient
  bool maximize = false;
  double grad_scale = 1;  // divides the gradient; unless it is 1, the quotient is written back
};

// The constants of a step. `step` counts from 1.
template <class T>
AdamConstants<T> adam_constants(const Adam& options, std::int64_t step);

// Indices into Shard::at.
struct AdamArrays {
  enum : std::size_t { kP, kG, kM, kV, kMaxV };  // kMaxV: AMSGrad's maximum, or nullptr
};

// One step (`step` counts from 1) as torch.optim.Adam and AdamW compute it:
//   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
// Sources: Kingma and Ba 2015, Loshchilov and Hutter 2019, Reddi et al. 2018 (AMSGrad).
void adam(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards,
          int num_threads);

// The same step as an update, for callers that run it in parts. `step` counts from 1.
Elementwise adam_update(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes);

// One step on one fp32 shard, in the caller's thread.
void adam(const Adam& options, std::int64_t step, float* p, const float* g, float* m, float* v, std::size_t numel);

}  // namespace shoal::fsdp
