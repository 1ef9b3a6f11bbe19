// One pass of an element-wise update over many shards: any dtypes, cut into cache-sized chunks where they differ, over several threads.
// An element's bits depend on its own values only: not on its shard's length, on chunks or on the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// A parameter, its gradient, up to three states, and a copy of the parameter in another type.
inline constexpr std::size_t kMaxArrays = 6;
inline constexpr std::size_t kCopy = 5;

// Arrays of `numel` elements each, one per operand of the update; nullptr where the update has none.
struct Shard {
  std::array<std::byte*, kMaxArrays> at{};
  std::size_t numel = 0;
};

struct Elementwise {
  std::array<DType, kMaxArrays> dtypes{};
  unsigned writes = 0;  // bit i: at[i] is written, too. at[kCopy] gets at[0] as it is after the update, in its own dtype.
  // The arithmetic: in fp64 where at[0] is fp64, otherwise in fp32, whatever the dtypes are.
  std::function<void(float* const* at, std::size_t numel)> f32;
  std::function<void(double* const* at, std::size_t numel)> f64;
};

// At most `num_threads` threads, this one among them; fewer where there is too little to do. They end before it returns. Subnormal inputs
// and results count as zero (moments that fade away would cost ten times as much otherwise).
void run(const Elementwise& update, std::span<const Shard> shards, int num_threads);

}  // namespace shoal::fsdp
