#include "fsdp/kernels/kernels.h"

#include <algorithm>
#include <array>
#include <type_traits>

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/kernels.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

// Sums in T. Sources of another type are converted to T in chunks that fit the first-level cache, a few sources at a time.
template <class T>
void reduce_in(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
               std::size_t numel) {
  constexpr DType wide = std::is_same_v<T, float> ? DType::kFloat32 : DType::kFloat64;
  constexpr std::size_t kChunk = 512, kTogether = 4;
  alignas(64) T sum[kChunk];
  alignas(64) T scratch[kTogether][kChunk];
  for (std::size_t i = 0; i < numel; i += kChunk) {
    const std::size_t count = std::min(kChunk, numel - i);
    std::byte* const target = out + i * dtype_bytes(out_dtype);
    T* const result = out_dtype == wide ? reinterpret_cast<T*>(target) : sum;
    for (std::size_t s = 0; s < sources.size();) {
      std::array<const T*, kTogether + 1> terms;
      std::size_t num_terms = 0;
      if (s > 0) terms[num_terms++] = sum;
      for (std::size_t k = 0; k < kTogether && s < sources.size(); ++k, ++s) {
        const std::byte* source = sources[s] + i * dtype_bytes(dtype);
        if (dtype != wide) cast(dtype, source, wide, reinterpret_cast<std::byte*>(scratch[k]), count);
        terms[num_terms++] = dtype == wide ? reinterpret_cast<const T*>(source) : scratch[k];
      }
      const std::span<const T* const> some(terms.data(), num_terms);
      if (s < sources.size()) {
        reduce_wide(some, 1, false, sum, count);
      } else if (accumulate && result == sum) {
        reduce_wide(some, scale, false, sum, count);
        cast(out_dtype, target, wide, reinterpret_cast<std::byte*>(scratch[0]), count);
        reduce_wide(std::array<const T*, 2>{scratch[0], sum}, 1, false, sum, count);
      } else {
        reduce_wide(some, scale, accumulate, result, count);
      }
    }
    if (result == sum) cast(wide, reinterpret_cast<const std::byte*>(sum), out_dtype, target, count);
  }
}

}  // namespace

void reduce(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
            std::size_t numel) {
  const auto in_place = [&]<class T>(T* typed) {
    reduce_wide(std::span(reinterpret_cast<const T* const*>(sources.data()), sources.size()), scale, accumulate, typed, numel);
  };
  if (dtype == DType::kFloat32 && out_dtype == DType::kFloat32) {
    in_place(reinterpret_cast<float*>(out));
  } else if (dtype == DType::kFloat64 && out_dtype == DType::kFloat64) {
    in_place(reinterpret_cast<double*>(out));
  } else if (dtype == DType::kFloat64 || out_dtype == DType::kFloat64) {
    reduce_in<double>(dtype, sources, scale, accumulate, out_dtype, out, numel);
  } else {
    reduce_in<float>(dtype, sources, scale, accumulate, out_dtype, out, numel);
  }
}

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

}  // namespace shoal::fsdp
#endif
