// One element's step of Adam, and the work of one thread of the kernel. Operations and roundings are those of fsdp/kernels/adam.cc: an
// element has the same bits on a device and on a CPU with FMA.
#pragma once

#include "fsdp/kernels/cuda/update_body.h"
#include "fsdp/kernels/optim_constants.h"

namespace shoal::fsdp::cuda {

SHOAL_HOST_DEVICE inline float root(float x) {
#ifdef __CUDA_ARCH__
  return ::sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}
SHOAL_HOST_DEVICE inline double root(double x) {
#ifdef __CUDA_ARCH__
  return ::sqrt(x);
#else
  return __builtin_sqrt(x);
#endif
}

template <class T>
struct AdamElement {
  T p, g, m, v, max_v;
};

template <class T>
SHOAL_HOST_DEVICE inline void step(const AdamConstants<T>& c, bool amsgrad, AdamElement<T>& e) {
  if (c.unscale) e.g = e.g / c.grad_scale;
  T g = e.g * c.sign;
  if (c.coupled) g = fused(e.p, c.coupled_decay, g);
  e.m = fused(g - e.m, c.one_minus_beta1, e.m);
  e.v = fused(g * g, c.one_minus_beta2, e.v * c.beta2);
  T seen = e.v;
  if (amsgrad) {
    if (!(e.v > e.max_v || e.v != e.v)) seen = e.max_v;
    e.max_v = seen;
  }
  const T denominator = fused(root(seen), c.inv_sqrt_correction2, c.eps);
  e.p = fused(-c.step_size, e.m / denominator, e.p * c.keep);
}

inline constexpr int kM = 2, kV = 3, kMaxV = 4;  // indices of arrays; the one at kMaxV is null without amsgrad

template <class T>
using AdamArguments = UpdateArguments<AdamConstants<T>>;
static_assert(sizeof(AdamArguments<double>) <= 4096);

template <class T>
SHOAL_HOST_DEVICE inline void adam(Thread thread, const AdamArguments<T>& a) {
  over_elements(thread, a, [&a](const UpdateShard& shard, std::uint64_t i) {
    const bool amsgrad = shard.at[kMaxV] != nullptr;
    AdamElement<T> e{load<T>(a, shard, kP, i), load<T>(a, shard, kG, i), load<T>(a, shard, kM, i), load<T>(a, shard, kV, i),
                     amsgrad ? load<T>(a, shard, kMaxV, i) : T{0}};
    step(a.constants, amsgrad, e);
    if (a.constants.unscale) store(a, shard, kG, i, e.g);
    store(a, shard, kM, i, e.m);
    store(a, shard, kV, i, e.v);
    if (amsgrad) store(a, shard, kMaxV, i, e.max_v);
    store(a, shard, kP, i, e.p);
    if (shard.at[kCopy] != nullptr) store(a, shard, kCopy, i, e.p);
  });
}

}  // namespace shoal::fsdp::cuda
