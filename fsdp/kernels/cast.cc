#include "fsdp/kernels/cast.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/cast.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "runtime/core/check.h"

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::Repartition<std::uint32_t, F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using F16 = hn::Rebind<hwy::float16_t, F32>;
using F64 = hn::ScalableTag<double>;
using HalfF32 = hn::Rebind<float, F64>;

constexpr std::size_t kAheadBytes = 2048;

// out[i] = one(in[i]), a vector at a time; the tail is processed on a copy.
template <class From, class To, class F>
HWY_INLINE void over(const From* in, To* out, std::size_t numel, std::size_t lanes, const F& one) {
  std::size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    hwy::Prefetch(in + i + kAheadBytes / sizeof(From));
    one(in + i, out + i);
  }
  if (const std::size_t rest = numel - i; rest > 0) {
    HWY_ALIGN From from[HWY_MAX_BYTES / sizeof(From)] = {};
    HWY_ALIGN To to[HWY_MAX_BYTES / sizeof(To)];
    std::memcpy(from, in + i, rest * sizeof(From));
    one(from, to);
    std::memcpy(out + i, to, rest * sizeof(To));
  }
}

void bf16_to_f32(const std::uint16_t* in, float* out, std::size_t numel) {
  const F32 f;
  const U32 u;
  const U16 h;
  over(in, out, numel, hn::Lanes(f), [&](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(hn::BitCast(f, hn::ShiftLeft<16>(hn::PromoteTo(u, hn::LoadU(h, from)))), f, to);
  });
}

void f32_to_bf16(const float* in, std::uint16_t* out, std::size_t numel) {
  const F32 f;
  const U32 u;
  const U16 h;
  const auto half = hn::Set(u, 0x7fff), one = hn::Set(u, 1), nan = hn::Set(u, 0x7fc0);
  over(in, out, numel, hn::Lanes(f), [&](const float* from, std::uint16_t* to) HWY_ATTR {
    const auto value = hn::LoadU(f, from);
    const auto bits = hn::BitCast(u, value);
    const auto high = hn::ShiftRight<16>(bits);
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(half, hn::And(high, one))));
    const auto kept = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(value)), nan, rounded);
    hn::StoreU(hn::DemoteTo(h, hn::BitCast(hn::RebindToSigned<U32>(), kept)), h, to);
  });
}

// Without a CPU instruction, Highway's conversion loses infinities, NaN and the sign of zero; the compiler's does not.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
void f16_to_f32(const std::uint16_t* in, float* out, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) {
    _Float16 half;
    std::memcpy(&half, in + i, sizeof(half));
    out[i] = static_cast<float>(half);
  }
}

void f32_to_f16(const float* in, std::uint16_t* out, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) {
    const auto half = static_cast<_Float16>(in[i]);
    std::memcpy(out + i, &half, sizeof(half));
  }
}
#else
void f16_to_f32(const std::uint16_t* in, float* out, std::size_t numel) {
  const F32 f;
  const U16 h;
  const F16 half;
  over(in, out, numel, hn::Lanes(f),
       [&](const std::uint16_t* from, float* to) HWY_ATTR { hn::StoreU(hn::PromoteTo(f, hn::BitCast(half, hn::LoadU(h, from))), f, to); });
}

void f32_to_f16(const float* in, std::uint16_t* out, std::size_t numel) {
  const F32 f;
  const U16 h;
  const F16 half;
  over(in, out, numel, hn::Lanes(f),
       [&](const float* from, std::uint16_t* to) HWY_ATTR { hn::StoreU(hn::BitCast(h, hn::DemoteTo(half, hn::LoadU(f, from))), h, to); });
}
#endif

// Without vectors, Highway's conversion turns overflow into the largest finite number.
#if HWY_TARGET == HWY_EMU128 || HWY_TARGET == HWY_SCALAR
void f64_to_f32(const double* in, float* out, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) out[i] = static_cast<float>(in[i]);
}
#else
void f64_to_f32(const double* in, float* out, std::size_t numel) {
  const F64 f;
  const HalfF32 h;
  over(in, out, numel, hn::Lanes(f),
       [&](const double* from, float* to) HWY_ATTR { hn::StoreU(hn::DemoteTo(h, hn::LoadU(f, from)), h, to); });
}
#endif

void f32_to_f64(const float* in, double* out, std::size_t numel) {
  const F64 f;
  const HalfF32 h;
  over(in, out, numel, hn::Lanes(f),
       [&](const float* from, double* to) HWY_ATTR { hn::StoreU(hn::PromoteTo(f, hn::LoadU(h, from)), f, to); });
}

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(bf16_to_f32);
HWY_EXPORT(f32_to_bf16);
HWY_EXPORT(f16_to_f32);
HWY_EXPORT(f32_to_f16);
HWY_EXPORT(f64_to_f32);
HWY_EXPORT(f32_to_f64);

namespace {

void to_f32(DType from, const std::byte* in, float* out, std::size_t numel) {
  const auto* half = reinterpret_cast<const std::uint16_t*>(in);
  switch (from) {
    case DType::kFloat32:
      std::memmove(out, in, numel * sizeof(float));
      return;
    case DType::kFloat64:
      return HWY_DYNAMIC_DISPATCH(f64_to_f32)(reinterpret_cast<const double*>(in), out, numel);
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(bf16_to_f32)(half, out, numel);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(f16_to_f32)(half, out, numel);
    default:
      SHOAL_CHECK(false, "arithmetic on a dtype that kernels only copy");
  }
}

void from_f32(const float* in, DType to, std::byte* out, std::size_t numel) {
  auto* half = reinterpret_cast<std::uint16_t*>(out);
  switch (to) {
    case DType::kFloat32:
      std::memmove(out, in, numel * sizeof(float));
      return;
    case DType::kFloat64:
      return HWY_DYNAMIC_DISPATCH(f32_to_f64)(in, reinterpret_cast<double*>(out), numel);
    case DType::kBFloat16:
      return HWY_DYNAMIC_DISPATCH(f32_to_bf16)(in, half, numel);
    case DType::kFloat16:
      return HWY_DYNAMIC_DISPATCH(f32_to_f16)(in, half, numel);
    default:
      SHOAL_CHECK(false, "arithmetic on a dtype that kernels only copy");
  }
}

}  // namespace

void cast(DType from, const std::byte* in, DType to, std::byte* out, std::size_t numel) {
  if (numel == 0) return;
  if (from == to) {
    std::memmove(out, in, numel * dtype_bytes(from));
  } else if (from == DType::kFloat32) {
    from_f32(reinterpret_cast<const float*>(in), to, out, numel);
  } else if (to == DType::kFloat32) {
    to_f32(from, in, reinterpret_cast<float*>(out), numel);
  } else {
    constexpr std::size_t kChunk = 1024;
    alignas(64) float between[kChunk];
    for (std::size_t i = 0; i < numel; i += kChunk) {
      const std::size_t count = std::min(kChunk, numel - i);
      to_f32(from, in + i * dtype_bytes(from), between, count);
      from_f32(between, to, out + i * dtype_bytes(to), count);
    }
  }
}

}  // namespace shoal::fsdp
#endif
