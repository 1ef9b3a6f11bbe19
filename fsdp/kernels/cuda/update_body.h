// The common part of the optimizers' kernels: a launch's arguments, and the way of one thread through the elements of its shards.
#pragma once

#include "runtime/device/kernels/bodies.h"

namespace shoal::fsdp::cuda {

using runtime::kernels::DTypeNumber;
using runtime::kernels::Thread;

// Indices into UpdateShard::at; an optimizer's states lie between them. kCopy receives the parameter in a dtype of its own.
inline constexpr int kP = 0, kG = 1, kCopy = 5, kNumArrays = 6;

struct UpdateShard {
  void* at[kNumArrays];  // null for an absent array
  std::uint64_t numel;
};

// One launch updates at most so many shards: the arguments of a kernel have at most 4096 bytes.
inline constexpr int kMaxShards = 64;

template <class Constants>
struct UpdateArguments {
  Constants constants;
  std::uint64_t num_shards;
  DTypeNumber dtypes[kNumArrays];
  UpdateShard shards[kMaxShards];
};

SHOAL_HOST_DEVICE inline float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return ::fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
SHOAL_HOST_DEVICE inline double fused(double a, double b, double c) { return runtime::kernels::fused(a, b, c); }

template <class T, class Constants>
SHOAL_HOST_DEVICE inline T load(const UpdateArguments<Constants>& a, const UpdateShard& shard, int array, std::uint64_t i) {
  return runtime::kernels::load<T>(a.dtypes[array], shard.at[array], i);
}
template <class T, class Constants>
SHOAL_HOST_DEVICE inline void store(const UpdateArguments<Constants>& a, const UpdateShard& shard, int array, std::uint64_t i, T x) {
  runtime::kernels::store(a.dtypes[array], shard.at[array], i, x);
}

// Calls one(shard, i) for each element of this thread. The threads share the elements of all shards as if these lay behind each other.
template <class Constants, class One>
SHOAL_HOST_DEVICE inline void over_elements(Thread thread, const UpdateArguments<Constants>& a, const One& one) {
  std::uint64_t i = thread.number;
  for (std::uint64_t s = 0; s < a.num_shards; ++s) {
    const UpdateShard& shard = a.shards[s];
    for (; i < shard.numel; i += thread.total) one(shard, i);
    i -= shard.numel;
  }
}

}  // namespace shoal::fsdp::cuda
