#include "fsdp/kernels/elementwise.h"

#include <algorithm>
#include <type_traits>

#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/flush_subnormals.h"
#include "fsdp/kernels/threads.h"

namespace shoal::fsdp {

namespace {

constexpr std::size_t kChunk = 1024;  // elements: six fp32 arrays take 24 KiB of a 32 KiB first-level cache

// Updates a part of a shard. Operands of another type than T are cast chunk by chunk.
template <class T>
void update_part(const Elementwise& update, const std::function<void(T* const*, std::size_t)>& arithmetic, const Shard& shard,
                 std::size_t begin, std::size_t end) {
  constexpr DType wide = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  const auto address = [&](std::size_t i, std::size_t element) { return shard.at[i] + element * dtype_bytes(update.dtypes[i]); };
  const auto direct = [&](std::size_t i) { return update.dtypes[i] == wide; };
  bool whole = shard.at[kCopy] == nullptr;
  for (std::size_t i = 0; i < kCopy; ++i) whole = whole && (shard.at[i] == nullptr || direct(i));

  alignas(64) T scratch[kCopy][kChunk];
  const std::size_t step = whole ? end - begin : kChunk;
  for (std::size_t from = begin; from < end; from += step) {
    const std::size_t numel = std::min(step, end - from);
    T* at[kMaxArrays] = {};
    for (std::size_t i = 0; i < kCopy; ++i) {
      if (shard.at[i] == nullptr) continue;
      at[i] = direct(i) ? reinterpret_cast<T*>(address(i, from)) : scratch[i];
      if (!direct(i)) cast(update.dtypes[i], address(i, from), wide, reinterpret_cast<std::byte*>(scratch[i]), numel);
    }
    arithmetic(at, numel);
    const auto give_back = [&](std::size_t from_array, std::size_t i) {
      cast(wide, reinterpret_cast<const std::byte*>(at[from_array]), update.dtypes[i], address(i, from), numel);
    };
    for (std::size_t i = 0; i < kCopy; ++i) {
      if (shard.at[i] != nullptr && !direct(i) && (update.writes >> i & 1)) give_back(i, i);
    }
    if (shard.at[kCopy] != nullptr) give_back(0, kCopy);
  }
}

// Updates elements [begin, end), counted over all shards one after the other.
void update_range(const Elementwise& update, std::span<const Shard> shards, std::size_t begin, std::size_t end) {
  std::size_t first = 0;
  for (const Shard& shard : shards) {
    const std::size_t from = std::clamp(begin, first, first + shard.numel) - first,
                      to = std::clamp(end, first, first + shard.numel) - first;
    first += shard.numel;
    if (from < to) run_part(update, shard, from, to);
  }
}

}  // namespace

void run_part(const Elementwise& update, const Shard& shard, std::size_t begin, std::size_t end) {
  const FlushSubnormals flush;
  if (update.dtypes[0] == DType::kFloat64) {
    update_part<double>(update, update.f64, shard, begin, end);
  } else {
    update_part<float>(update, update.f32, shard, begin, end);
  }
}

void run(const Elementwise& update, std::span<const Shard> shards, int num_threads) {
  std::size_t total = 0;
  for (const Shard& shard : shards) total += shard.numel;
  over_threads(total, num_threads, [&](std::size_t begin, std::size_t end, int) { update_range(update, shards, begin, end); });
}

}  // namespace shoal::fsdp
