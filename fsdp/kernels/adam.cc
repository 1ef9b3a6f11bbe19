#include "fsdp/kernels/adam.h"

#include <cmath>
#include <cstring>

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/adam.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "fsdp/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T, bool kAmsgrad>
void adam_as(const AdamConstants<T>& c, T* const* at, std::size_t numel) {
  const hn::ScalableTag<T> d;
  const auto sign = hn::Set(d, c.sign), grad_scale = hn::Set(d, c.grad_scale), coupled_decay = hn::Set(d, c.coupled_decay),
             keep = hn::Set(d, c.keep), one_minus_beta1 = hn::Set(d, c.one_minus_beta1), beta2 = hn::Set(d, c.beta2),
             one_minus_beta2 = hn::Set(d, c.one_minus_beta2), step_size = hn::Set(d, c.step_size), inv = hn::Set(d, c.inv_sqrt_correction2),
             eps = hn::Set(d, c.eps);
  using A = AdamArrays;
  const bool coupled = c.coupled, unscale = c.unscale;
  over_vectors<kAmsgrad ? 5 : 4>(d, at, numel, [&](T* const* a, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, a[A::kP] + i), g = hn::LoadU(d, a[A::kG] + i), m = hn::LoadU(d, a[A::kM] + i), v = hn::LoadU(d, a[A::kV] + i);
    if (unscale) {
      g = hn::Div(g, grad_scale);
      hn::StoreU(g, d, a[A::kG] + i);
    }
    g = hn::Mul(g, sign);
    if (coupled) g = hn::MulAdd(p, coupled_decay, g);
    m = hn::MulAdd(hn::Sub(g, m), one_minus_beta1, m);  // lerp, as in torch
    v = hn::MulAdd(hn::Mul(g, g), one_minus_beta2, hn::Mul(v, beta2));
    auto seen = v;
    if constexpr (kAmsgrad) {
      // The maximum; NaN when either is NaN.
      const auto before = hn::LoadU(d, a[A::kMaxV] + i);
      seen = hn::IfThenElse(hn::Or(hn::Gt(v, before), hn::IsNaN(v)), v, before);
      hn::StoreU(seen, d, a[A::kMaxV] + i);
    }
    const auto denominator = hn::MulAdd(hn::Sqrt(seen), inv, eps);
    p = hn::NegMulAdd(step_size, hn::Div(m, denominator), hn::Mul(p, keep));
    hn::StoreU(m, d, a[A::kM] + i);
    hn::StoreU(v, d, a[A::kV] + i);
    hn::StoreU(p, d, a[A::kP] + i);
  });
}

void adam_f32(const AdamConstants<float>& c, float* const* at, std::size_t numel) {
  using T = float;
  at[AdamArrays::kMaxV] != nullptr ? adam_as<T, true>(c, at, numel) : adam_as<T, false>(c, at, numel);
}
void adam_f64(const AdamConstants<double>& c, double* const* at, std::size_t numel) {
  using T = double;
  at[AdamArrays::kMaxV] != nullptr ? adam_as<T, true>(c, at, numel) : adam_as<T, false>(c, at, numel);
}

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);

template <class T>
AdamConstants<T> adam_constants(const Adam& o, std::int64_t step) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(step)),
               correction2 = 1 - std::pow(o.beta2, static_cast<double>(step));
  return {.sign = o.maximize ? T{-1} : T{1},
          .grad_scale = static_cast<T>(o.grad_scale),
          .coupled_decay = static_cast<T>(o.weight_decay),
          .keep = o.decoupled ? static_cast<T>(1 - o.lr * o.weight_decay) : T{1},
          .one_minus_beta1 = static_cast<T>(1 - o.beta1),
          .beta2 = static_cast<T>(o.beta2),
          .one_minus_beta2 = static_cast<T>(1 - o.beta2),
          .step_size = static_cast<T>(o.lr / correction1),
          .inv_sqrt_correction2 = static_cast<T>(1 / std::sqrt(correction2)),
          .eps = static_cast<T>(o.eps),
          .coupled = !o.decoupled && o.weight_decay != 0,
          .unscale = o.grad_scale != 1};
}
template AdamConstants<float> adam_constants(const Adam& o, std::int64_t step);
template AdamConstants<double> adam_constants(const Adam& o, std::int64_t step);

Elementwise adam_update(const Adam& o, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes) {
  using A = AdamArrays;
  Elementwise update{.dtypes = dtypes, .writes = 1u << A::kP | 1u << A::kM | 1u << A::kV | 1u << A::kMaxV, .f32 = {}, .f64 = {}};
  if (o.grad_scale != 1) update.writes |= 1u << A::kG;
  update.f32 = [c = adam_constants<float>(o, step)](float* const* at, std::size_t numel) { HWY_DYNAMIC_DISPATCH(adam_f32)(c, at, numel); };
  update.f64 = [c = adam_constants<double>(o, step)](double* const* at, std::size_t numel) {
    HWY_DYNAMIC_DISPATCH(adam_f64)(c, at, numel);
  };
  return update;
}

void adam(const Adam& o, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards, int num_threads) {
  run(adam_update(o, step, dtypes), shards, num_threads);
}

void adam(const Adam& o, std::int64_t step, float* p, const float* g, float* m, float* v, std::size_t numel) {
  const auto raw = [](const float* address) { return reinterpret_cast<std::byte*>(const_cast<float*>(address)); };
  const Shard shard{{raw(p), raw(g), raw(m), raw(v)}, numel};
  adam(o, step, {}, {&shard, 1}, 1);
}

}  // namespace shoal::fsdp
#endif
