// One element's step of Adam, and the work of one thread of the kernel. Operations and roundings are those of fsdp/kernels/adam.cc: an
// element has the same bits on a device and on a CPU with FMA.
#pragma once

#include "fsdp/kernels/adam_constants.h"
#include "runtime/device/kernels/bodies.h"

namespace shoal::fsdp::cuda {

using runtime::kernels::DTypeNumber;
using runtime::kernels::Thread;

SHOAL_HOST_DEVICE inline float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return ::fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
SHOAL_HOST_DEVICE inline double fused(double a, double b, double c) { return runtime::kernels::fused(a, b, c); }
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

// Indices into AdamShard::at. kCopy receives the parameter in a dtype of its own.
inline constexpr int kP = 0, kG = 1, kM = 2, kV = 3, kMaxV = 4, kCopy = 5, kNumArrays = 6;

struct AdamShard {
  void* at[kNumArrays];  // kMaxV and kCopy may be null
  std::uint64_t numel;
};

// One launch updates at most so many shards: the arguments of a kernel have at most 4096 bytes.
inline constexpr int kMaxShards = 64;

template <class T>
struct AdamArguments {
  AdamConstants<T> constants;
  std::uint64_t num_shards;
  DTypeNumber dtypes[kNumArrays];
  AdamShard shards[kMaxShards];
};
static_assert(sizeof(AdamArguments<double>) <= 4096);

template <class T>
SHOAL_HOST_DEVICE inline void update(const AdamArguments<T>& a, const AdamShard& shard, std::uint64_t i) {
  using runtime::kernels::load;
  using runtime::kernels::store;
  const bool amsgrad = shard.at[kMaxV] != nullptr;
  AdamElement<T> e{load<T>(a.dtypes[kP], shard.at[kP], i), load<T>(a.dtypes[kG], shard.at[kG], i), load<T>(a.dtypes[kM], shard.at[kM], i),
                   load<T>(a.dtypes[kV], shard.at[kV], i), amsgrad ? load<T>(a.dtypes[kMaxV], shard.at[kMaxV], i) : T{0}};
  step(a.constants, amsgrad, e);
  if (a.constants.unscale) store(a.dtypes[kG], shard.at[kG], i, e.g);
  store(a.dtypes[kM], shard.at[kM], i, e.m);
  store(a.dtypes[kV], shard.at[kV], i, e.v);
  if (amsgrad) store(a.dtypes[kMaxV], shard.at[kMaxV], i, e.max_v);
  store(a.dtypes[kP], shard.at[kP], i, e.p);
  if (shard.at[kCopy] != nullptr) store(a.dtypes[kCopy], shard.at[kCopy], i, e.p);
}

// The threads share the elements of all shards as if these lay behind each other.
template <class T>
SHOAL_HOST_DEVICE inline void adam(Thread thread, const AdamArguments<T>& a) {
  std::uint64_t i = thread.number;
  for (std::uint64_t s = 0; s < a.num_shards; ++s) {
    const AdamShard& shard = a.shards[s];
    for (; i < shard.numel; i += thread.total) update(a, shard, i);
    i -= shard.numel;
  }
}

}  // namespace shoal::fsdp::cuda
