// One pass of an element-wise update over many shards of any dtypes, on several threads; arrays of other dtypes go through cache-sized
// chunks. An element's bits depend on its own values only: not on its shard's length, on chunks or on the number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// Up to five operands (a parameter, its gradient, three states), and a copy of the parameter in another dtype.
inline constexpr std::size_t kMaxArrays = 6;
inline constexpr std::size_t kCopy = 5;

// Arrays of `numel` elements each, one per operand of the update; nullptr for an absent operand.
struct Shard {
  std::array<std::byte*, kMaxArrays> at{};
  std::size_t numel = 0;
};

struct Elementwise {
  std::array<DType, kMaxArrays> dtypes{};
  unsigned writes = 0;  // bit i: at[i] is written as well; at[kCopy] receives the updated at[0] in its own dtype
  // The arithmetic: f64 if at[0] is fp64, else f32, whatever the other dtypes are.
  std::function<void(float* const* at, std::size_t numel)> f32;
  std::function<void(double* const* at, std::size_t numel)> f64;
};

// Uses at most `num_threads` threads, the caller's included, and fewer for little work. All work is done on return. Subnormal inputs and
// results count as zero: vanishing moments would otherwise cost ten times as much.
void run(const Elementwise& update, std::span<const Shard> shards, int num_threads);

// Updates elements [begin, end) of one shard, in the caller's thread.
void run_part(const Elementwise& update, const Shard& shard, std::size_t begin, std::size_t end);

}  // namespace shoal::fsdp
