#include "fsdp/kernels/kernels.h"

#include <cmath>
#include <cstdint>
#include <cstring>

// This file is compiled once per instruction set: foreach_target.h includes it again by the name given here.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "runtime/core/check.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void reduce_f32(const float* const* sources, std::size_t num_sources, float scale, bool accumulate, float* out, std::size_t numel) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto vscale = hn::Set(d, scale);
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    auto sum = hn::LoadU(d, sources[0] + i);
    for (std::size_t s = 1; s < num_sources; ++s) sum = hn::Add(sum, hn::LoadU(d, sources[s] + i));
    sum = hn::Mul(sum, vscale);
    if (accumulate) sum = hn::Add(hn::LoadU(d, out + i), sum);
    hn::StoreU(sum, d, out + i);
  }
  for (; i < numel; ++i) {
    float sum = sources[0][i];
    for (std::size_t s = 1; s < num_sources; ++s) sum += sources[s][i];
    sum *= scale;
    out[i] = accumulate ? out[i] + sum : sum;
  }
}

void adamw_f32(const AdamWConstants& c, float* HWY_RESTRICT p, const float* HWY_RESTRICT g, float* HWY_RESTRICT m, float* HWY_RESTRICT v,
               std::size_t numel) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto decay = hn::Set(d, c.decay), one_minus_beta1 = hn::Set(d, c.one_minus_beta1), beta2 = hn::Set(d, c.beta2),
             one_minus_beta2 = hn::Set(d, c.one_minus_beta2), step_size = hn::Set(d, c.step_size), inv = hn::Set(d, c.inv_sqrt_correction2),
             eps = hn::Set(d, c.eps);
  const auto update = [&](float* pa, const float* ga, float* ma, float* va) {
    const auto gi = hn::LoadU(d, ga);
    auto mi = hn::LoadU(d, ma);
    mi = hn::MulAdd(hn::Sub(gi, mi), one_minus_beta1, mi);  // lerp, as torch has it
    auto vi = hn::Mul(hn::LoadU(d, va), beta2);
    vi = hn::MulAdd(hn::Mul(gi, gi), one_minus_beta2, vi);
    const auto denominator = hn::MulAdd(hn::Sqrt(vi), inv, eps);
    auto pi = hn::Mul(hn::LoadU(d, pa), decay);
    pi = hn::NegMulAdd(step_size, hn::Div(mi, denominator), pi);
    hn::StoreU(mi, d, ma);
    hn::StoreU(vi, d, va);
    hn::StoreU(pi, d, pa);
  };
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) update(p + i, g + i, m + i, v + i);
  // The rest by the same instructions on a copy: an element's bits do not depend on where a shard ends, and nothing is stored beyond it.
  if (const std::size_t rest = numel - i; rest > 0) {
    HWY_ALIGN float buffers[4][HWY_MAX_BYTES / sizeof(float)] = {};
    const std::size_t bytes = rest * sizeof(float);
    std::memcpy(buffers[0], p + i, bytes);
    std::memcpy(buffers[1], g + i, bytes);
    std::memcpy(buffers[2], m + i, bytes);
    std::memcpy(buffers[3], v + i, bytes);
    update(buffers[0], buffers[1], buffers[2], buffers[3]);
    std::memcpy(p + i, buffers[0], bytes);
    std::memcpy(m + i, buffers[2], bytes);
    std::memcpy(v + i, buffers[3], bytes);
  }
}

const char* target() { return hwy::TargetName(HWY_TARGET); }

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(reduce_f32);
HWY_EXPORT(adamw_f32);
HWY_EXPORT(target);

namespace {

struct BFloat16 {
  std::uint16_t bits;
  float load() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
  }
  static BFloat16 store(double v) {
    const auto value = static_cast<float>(v);
    std::uint32_t wide;
    std::memcpy(&wide, &value, 4);
    if (std::isnan(value)) return {0x7fc0};
    return {static_cast<std::uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16)};  // to nearest, ties to even
  }
};

struct Float16 {
  _Float16 value;
  float load() const { return static_cast<float>(value); }
  static Float16 store(double v) { return {static_cast<_Float16>(static_cast<float>(v))}; }
};

template <class T>
struct Same {
  T value;
  T load() const { return value; }
  static Same store(double v) { return {static_cast<T>(v)}; }
};

template <class F>
void with_dtype(DType dtype, F&& fn) {
  switch (dtype) {
    case DType::kFloat32:
      return fn(Same<float>{});
    case DType::kFloat64:
      return fn(Same<double>{});
    case DType::kBFloat16:
      return fn(BFloat16{});
    case DType::kFloat16:
      return fn(Float16{});
    default:
      SHOAL_CHECK(false, "arithmetic on a dtype whose bytes are only moved");
  }
}

template <class T>
auto load(const std::byte* base, std::size_t i) {
  T value;
  std::memcpy(&value, base + i * sizeof(T), sizeof(T));
  return value.load();
}

template <class T>
void store(std::byte* base, std::size_t i, double wide) {
  const T value = T::store(wide);
  std::memcpy(base + i * sizeof(T), &value, sizeof(T));
}

template <class In, class Out>
void reduce_as(std::span<const std::byte* const> sources, double scale, bool accumulate, std::byte* out, std::size_t numel) {
  using Wide = decltype(load<In>(nullptr, 0) + load<Out>(nullptr, 0));
  for (std::size_t i = 0; i < numel; ++i) {
    Wide sum = load<In>(sources[0], i);
    for (std::size_t s = 1; s < sources.size(); ++s) sum += load<In>(sources[s], i);
    sum *= static_cast<Wide>(scale);
    if (accumulate) sum += load<Out>(out, i);
    store<Out>(out, i, sum);
  }
}

}  // namespace

void reduce(DType dtype, std::span<const std::byte* const> sources, double scale, bool accumulate, DType out_dtype, std::byte* out,
            std::size_t numel) {
  if (dtype == DType::kFloat32 && out_dtype == DType::kFloat32) {
    return HWY_DYNAMIC_DISPATCH(reduce_f32)(reinterpret_cast<const float* const*>(sources.data()), sources.size(),
                                            static_cast<float>(scale), accumulate, reinterpret_cast<float*>(out), numel);
  }
  with_dtype(dtype, [&]<class In>(In) {
    with_dtype(out_dtype, [&]<class Out>(Out) { reduce_as<In, Out>(sources, scale, accumulate, out, numel); });
  });
}

void cast(DType dtype, const std::byte* in, DType out_dtype, std::byte* out, std::size_t numel) {
  if (dtype == out_dtype) {
    if (numel > 0) std::memcpy(out, in, numel * dtype_bytes(dtype));
    return;
  }
  with_dtype(dtype, [&]<class In>(In) {
    with_dtype(out_dtype, [&]<class Out>(Out) {
      for (std::size_t i = 0; i < numel; ++i) store<Out>(out, i, load<In>(in, i));
    });
  });
}

void adamw(const AdamW& o, std::int64_t step, float* p, const float* g, float* m, float* v, std::size_t numel) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(step));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(step));
  HWY_DYNAMIC_DISPATCH(adamw_f32)
  ({static_cast<float>(1 - o.lr * o.weight_decay), static_cast<float>(1 - o.beta1), static_cast<float>(o.beta2),
    static_cast<float>(1 - o.beta2), static_cast<float>(o.lr / correction1), static_cast<float>(1 / std::sqrt(correction2)),
    static_cast<float>(o.eps)},
   p, g, m, v, numel);
}

const char* kernel_target() { return HWY_DYNAMIC_DISPATCH(target)(); }

}  // namespace shoal::fsdp
#endif
