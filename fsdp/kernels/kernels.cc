#include "fsdp/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "runtime/core/check.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void reduce_as(const T* const* sources, std::size_t num_sources, T scale, bool accumulate, T* out, std::size_t numel) {
  constexpr std::size_t ahead = 2048 / sizeof(T);
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto vscale = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    hwy::Prefetch(sources[0] + i + ahead);
    auto sum = hn::LoadU(d, sources[0] + i);
    for (std::size_t s = 1; s < num_sources; ++s) {
      hwy::Prefetch(sources[s] + i + ahead);
      sum = hn::Add(sum, hn::LoadU(d, sources[s] + i));
    }
    sum = hn::Mul(sum, vscale);
    hwy::Prefetch(out + i + ahead);
    if (accumulate) sum = hn::Add(hn::LoadU(d, out + i), sum);
    hn::StoreU(sum, d, out + i);
  }
  for (; i < numel; ++i) {
    T sum = sources[0][i];
    for (std::size_t s = 1; s < num_sources; ++s) sum += sources[s][i];
    sum *= scale;
    out[i] = accumulate ? out[i] + sum : sum;
  }
}

void reduce_f32(const float* const* sources, std::size_t num_sources, float scale, bool accumulate, float* out, std::size_t numel) {
  reduce_as(sources, num_sources, scale, accumulate, out, numel);
}
void reduce_f64(const double* const* sources, std::size_t num_sources, double scale, bool accumulate, double* out, std::size_t numel) {
  reduce_as(sources, num_sources, scale, accumulate, out, numel);
}

const char* target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(reduce_f32);
HWY_EXPORT(reduce_f64);
HWY_EXPORT(target);

namespace {

void reduce_wide(std::span<const float* const> sources, double scale, bool accumulate, float* out, std::size_t numel) {
  HWY_DYNAMIC_DISPATCH(reduce_f32)(sources.data(), sources.size(), static_cast<float>(scale), accumulate, out, numel);
}
void reduce_wide(std::span<const double* const> sources, double scale, bool accumulate, double* out, std::size_t numel) {
  HWY_DYNAMIC_DISPATCH(reduce_f64)(sources.data(), sources.size(), scale, accumulate, out, numel);
}

constexpr std::size_t kMaxSources = 64;

// The additions of a sum, in order: an index pushes that source, kAdd replaces the two latest sums by their sum.
class Order {
 public:
  static constexpr int kAdd = -1;
  explicit Order(std::span<const Source> sources) {
    SHOAL_CHECK(!sources.empty() && sources.size() <= kMaxSources, "a sum has 1 to 64 sources");
    append(sources, 0, sources.size(), 0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(sources.back().rank) + 1)));
  }
  std::span<const int> steps() const { return {steps_.data(), size_}; }
  // True if each source is added to the sum of all sources before it.
  bool chain() const {
    for (std::size_t i = 1; i < size_; ++i) {
      if ((steps_[i] == kAdd) != (i % 2 == 0)) return false;
    }
    return true;
  }

 private:
  // Appends the sum of sources [begin, end), all of ranks [rank, rank + num_ranks).
  void append(std::span<const Source> sources, std::size_t begin, std::size_t end, int rank, int num_ranks) {
    if (end - begin == 1) {
      steps_[size_++] = static_cast<int>(begin);
      return;
    }
    SHOAL_CHECK(num_ranks > 1, "two sources of a sum have the same rank");
    const int half = num_ranks / 2;
    std::size_t middle = begin;
    while (middle < end && sources[middle].rank < rank + half) ++middle;
    if (middle > begin) append(sources, begin, middle, rank, half);
    if (middle < end) append(sources, middle, end, rank + half, half);
    if (middle > begin && middle < end) steps_[size_++] = kAdd;
  }

  std::array<int, 2 * kMaxSources> steps_;
  std::size_t size_ = 0;
};

// Sums in T, chunk by chunk, so that intermediate sums and converted sources stay in the first-level cache.
template <class T>
void reduce_in(std::span<const Source> sources, const Order& order, double scale, bool accumulate, DType out_dtype, std::byte* out,
               std::size_t numel) {
  constexpr DType wide = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  constexpr std::size_t kChunk = 512, kDepth = 8;  // a tree over kMaxSources has at most 7 sums that wait
  alignas(64) T scratch[kDepth][kChunk];
  alignas(64) T target_as_wide[kChunk];
  for (std::size_t i = 0; i < numel; i += kChunk) {
    const std::size_t count = std::min(kChunk, numel - i);
    std::byte* const target = out + i * dtype_bytes(out_dtype);
    std::array<const T*, kDepth> sums;  // each one in its scratch, or a source itself
    std::size_t depth = 0;
    const auto steps = order.steps();
    const bool adds = steps.back() == Order::kAdd;  // the last addition is part of the scaling below
    for (const int step : steps.first(steps.size() - (adds ? 1 : 0))) {
      if (step == Order::kAdd) {
        --depth;
        reduce_wide(std::array<const T*, 2>{sums[depth - 1], sums[depth]}, 1, false, scratch[depth - 1], count);
        sums[depth - 1] = scratch[depth - 1];
        continue;
      }
      const Source& source = sources[static_cast<std::size_t>(step)];
      const std::byte* const data = source.data + i * dtype_bytes(source.dtype);
      if (source.dtype != wide) cast(source.dtype, data, wide, reinterpret_cast<std::byte*>(scratch[depth]), count);
      sums[depth] = source.dtype == wide ? reinterpret_cast<const T*>(data) : scratch[depth];
      ++depth;
    }
    const std::span<const T* const> terms(sums.data(), depth);
    if (out_dtype == wide) {
      reduce_wide(terms, scale, accumulate, reinterpret_cast<T*>(target), count);
      continue;
    }
    reduce_wide(terms, scale, false, scratch[0], count);
    if (accumulate) {
      cast(out_dtype, target, wide, reinterpret_cast<std::byte*>(target_as_wide), count);
      reduce_wide(std::array<const T*, 2>{target_as_wide, scratch[0]}, 1, false, scratch[0], count);
    }
    cast(wide, reinterpret_cast<const std::byte*>(scratch[0]), out_dtype, target, count);
  }
}

// Sums in one pass over the memory, for sources and result of one type.
template <class T>
void reduce_chain(std::span<const Source> sources, double scale, bool accumulate, std::byte* out, std::size_t numel) {
  std::array<const T*, kMaxSources> terms;
  for (std::size_t s = 0; s < sources.size(); ++s) terms[s] = reinterpret_cast<const T*>(sources[s].data);
  reduce_wide(std::span<const T* const>(terms.data(), sources.size()), scale, accumulate, reinterpret_cast<T*>(out), numel);
}

}  // namespace

void reduce(std::span<const Source> sources, double scale, bool accumulate, DType out_dtype, std::byte* out, std::size_t numel) {
  const Order order(sources);
  const auto all = [&](DType dtype) { return std::ranges::all_of(sources, [&](const Source& s) { return s.dtype == dtype; }); };
  const auto any = [&](DType dtype) { return std::ranges::any_of(sources, [&](const Source& s) { return s.dtype == dtype; }); };
  if (out_dtype == DType::kFloat32 && all(DType::kFloat32) && order.chain()) {
    reduce_chain<float>(sources, scale, accumulate, out, numel);
  } else if (out_dtype == DType::kFloat64 && all(DType::kFloat64) && order.chain()) {
    reduce_chain<double>(sources, scale, accumulate, out, numel);
  } else if (out_dtype == DType::kFloat64 || any(DType::kFloat64)) {
    reduce_in<double>(sources, order, scale, accumulate, out_dtype, out, numel);
  } else {
    reduce_in<float>(sources, order, scale, accumulate, out_dtype, out, numel);
  }
}

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

}  // namespace shoal::fsdp
#endif
