#include "fsdp/kernels/sgd.h"

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/sgd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "fsdp/kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T, bool kBuffered>
void sgd_as(const SgdConstants<T>& c, T* const* at, std::size_t numel) {
  const hn::ScalableTag<T> d;
  const auto sign = hn::Set(d, c.sign), grad_scale = hn::Set(d, c.grad_scale), decay = hn::Set(d, c.decay),
             momentum = hn::Set(d, c.momentum), taken = hn::Set(d, c.taken), lr = hn::Set(d, c.lr);
  using A = SgdArrays;
  const bool decays = c.decays, unscale = c.unscale, nesterov = c.nesterov, first = c.first;
  over_vectors<kBuffered ? 3 : 2>(d, at, numel, [&](T* const* a, std::size_t i) HWY_ATTR {
    auto p = hn::LoadU(d, a[A::kP] + i), g = hn::LoadU(d, a[A::kG] + i);
    if (unscale) {
      g = hn::Div(g, grad_scale);
      hn::StoreU(g, d, a[A::kG] + i);
    }
    g = hn::Mul(g, sign);
    if (decays) g = hn::MulAdd(p, decay, g);
    if constexpr (kBuffered) {
      auto buffer = g;
      if (!first) buffer = hn::MulAdd(g, taken, hn::Mul(hn::LoadU(d, a[A::kBuffer] + i), momentum));
      hn::StoreU(buffer, d, a[A::kBuffer] + i);
      g = nesterov ? hn::MulAdd(buffer, momentum, g) : buffer;
    }
    hn::StoreU(hn::NegMulAdd(lr, g, p), d, a[A::kP] + i);
  });
}

void sgd_f32(const SgdConstants<float>& c, float* const* at, std::size_t numel) {
  using T = float;
  at[SgdArrays::kBuffer] != nullptr ? sgd_as<T, true>(c, at, numel) : sgd_as<T, false>(c, at, numel);
}
void sgd_f64(const SgdConstants<double>& c, double* const* at, std::size_t numel) {
  using T = double;
  at[SgdArrays::kBuffer] != nullptr ? sgd_as<T, true>(c, at, numel) : sgd_as<T, false>(c, at, numel);
}

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);

template <class T>
SgdConstants<T> sgd_constants(const Sgd& o) {
  return {.sign = o.maximize ? T{-1} : T{1},
          .grad_scale = static_cast<T>(o.grad_scale),
          .decay = static_cast<T>(o.weight_decay),
          .momentum = static_cast<T>(o.momentum),
          .taken = static_cast<T>(1 - o.dampening),
          .lr = static_cast<T>(o.lr),
          .decays = o.weight_decay != 0,
          .unscale = o.grad_scale != 1,
          .nesterov = o.nesterov,
          .first = o.first};
}
template SgdConstants<float> sgd_constants(const Sgd& o);
template SgdConstants<double> sgd_constants(const Sgd& o);

Elementwise sgd_update(const Sgd& o, const std::array<DType, kMaxArrays>& dtypes) {
  using A = SgdArrays;
  Elementwise update{.dtypes = dtypes, .writes = 1u << A::kP | 1u << A::kBuffer, .f32 = {}, .f64 = {}};
  if (o.grad_scale != 1) update.writes |= 1u << A::kG;
  update.f32 = [c = sgd_constants<float>(o)](float* const* at, std::size_t numel) { HWY_DYNAMIC_DISPATCH(sgd_f32)(c, at, numel); };
  update.f64 = [c = sgd_constants<double>(o)](double* const* at, std::size_t numel) { HWY_DYNAMIC_DISPATCH(sgd_f64)(c, at, numel); };
  return update;
}

void sgd(const Sgd& o, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards, int num_threads) {
  run(sgd_update(o, dtypes), shards, num_threads);
}

}  // namespace shoal::fsdp
#endif
