#include "runtime/transport/reduction.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

// Highway compiles this file once per instruction set: foreach_target.h includes it again by the name given here. The compiler
// vectorises the plain loops.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/transport/reduction.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::runtime::HWY_NAMESPACE {

constexpr std::size_t kBlock = 1024;  // number of elements reduced at a time, which fit into the cache

// How elements of one dtype are reduced: T is the type in memory, Wide the type for computation.
template <class T, class W>
struct Plain {
  using Memory = T;
  using Wide = W;
  static Wide widen(T v) { return static_cast<Wide>(v); }
  static T narrow(Wide v) { return static_cast<T>(v); }
};

struct BFloat16 {
  using Memory = std::uint16_t;
  using Wide = float;
  static float widen(std::uint16_t bits) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float out;
    std::memcpy(&out, &wide, 4);
    return out;
  }
  static std::uint16_t narrow(float value) {
    std::uint32_t wide;
    std::memcpy(&wide, &value, 4);
    const auto rounded = static_cast<std::uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);  // to nearest, ties to even
    return value != value ? std::uint16_t{0x7fc0} : rounded;
  }
};

struct Bool {
  using Memory = std::uint8_t;
  using Wide = std::uint8_t;
  static std::uint8_t widen(std::uint8_t v) { return v != 0; }
  static std::uint8_t narrow(std::uint8_t v) { return v != 0; }
};

template <class W>
W join(ReduceOp op, W a, W b) {
  switch (op) {
    case ReduceOp::kMin:
      if constexpr (std::is_floating_point_v<W>) {
        if (a != a || b != b) return a != a ? a : b;  // a NaN is the result, as in torch
      }
      return b < a ? b : a;
    case ReduceOp::kMax:
      if constexpr (std::is_floating_point_v<W>) {
        if (a != a || b != b) return a != a ? a : b;
      }
      return a < b ? b : a;
    case ReduceOp::kProduct:
      if constexpr (std::is_integral_v<W>) {
        using U = std::common_type_t<unsigned, std::make_unsigned_t<W>>;
        return static_cast<W>(static_cast<U>(a) * static_cast<U>(b));
      } else {
        return a * b;
      }
    case ReduceOp::kBand:
      if constexpr (std::is_integral_v<W>) return static_cast<W>(a & b);
      return a;  // check_reducible() refuses bits of floating-point numbers
    case ReduceOp::kBor:
      if constexpr (std::is_integral_v<W>) return static_cast<W>(a | b);
      return a;
    case ReduceOp::kBxor:
      if constexpr (std::is_integral_v<W>) return static_cast<W>(a ^ b);
      return a;
    default:
      if constexpr (std::is_integral_v<W>) {
        using U = std::common_type_t<unsigned, std::make_unsigned_t<W>>;
        return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
      } else {
        return a + b;
      }
  }
}

template <class T>
bool aligned(const std::byte* const* sources, std::size_t num_sources, const std::byte* out) {
  const auto is_aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % alignof(T) == 0; };
  return is_aligned(out) && std::all_of(sources, sources + num_sources, is_aligned);
}

// Elements that are computed in their own type need no copies: each block is reduced where it lies. `out` may be one of the sources.
template <class T, ReduceOp op>
void reduce_in_place(const std::byte* const* sources, std::size_t num_sources, std::byte* out_bytes, std::size_t numel) {
  T* const out = reinterpret_cast<T*>(out_bytes);
  const auto source = [&](std::size_t s) { return reinterpret_cast<const T*>(sources[s]); };
  T partial[kBlock];
  for (std::size_t begin = 0; begin < numel; begin += kBlock) {
    const std::size_t n = std::min(kBlock, numel - begin);
    const T* left = source(0) + begin;
    for (std::size_t s = 1; s < num_sources; ++s) {
      const T* const right = source(s) + begin;
      const bool last = s + 1 == num_sources;
      T* const to = last ? out + begin : partial;
      if (op == ReduceOp::kAvg && last) {
        const T count = static_cast<T>(num_sources);
#pragma GCC ivdep
        for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<T>(join<T>(op, left[i], right[i]) / count);
      } else {
#pragma GCC ivdep
        for (std::size_t i = 0; i < n; ++i) to[i] = join<T>(op, left[i], right[i]);
      }
      left = partial;
    }
  }
}

template <class E, ReduceOp op>
void reduce_op(const std::byte* const* sources, std::size_t num_sources, std::byte* out, std::size_t numel) {
  using T = typename E::Memory;
  using W = typename E::Wide;
  if constexpr (std::is_same_v<E, Plain<T, T>>) {
    if (num_sources > 1 && aligned<T>(sources, num_sources, out)) return reduce_in_place<T, op>(sources, num_sources, out, numel);
  }
  W wide[kBlock];
  T narrow[kBlock];
  for (std::size_t begin = 0; begin < numel; begin += kBlock) {
    const std::size_t n = std::min(kBlock, numel - begin), bytes = n * sizeof(T);
    std::memcpy(narrow, sources[0] + begin * sizeof(T), bytes);
    for (std::size_t i = 0; i < n; ++i) wide[i] = E::widen(narrow[i]);
    for (std::size_t s = 1; s < num_sources; ++s) {
      std::memcpy(narrow, sources[s] + begin * sizeof(T), bytes);
      for (std::size_t i = 0; i < n; ++i) wide[i] = join<W>(op, wide[i], E::widen(narrow[i]));
    }
    if constexpr (op == ReduceOp::kAvg) {
      for (std::size_t i = 0; i < n; ++i) wide[i] = static_cast<W>(wide[i] / static_cast<W>(num_sources));
    }
    for (std::size_t i = 0; i < n; ++i) narrow[i] = E::narrow(wide[i]);
    std::memcpy(out + begin * sizeof(T), narrow, bytes);
  }
}

template <class E>
void reduce_as(ReduceOp op, const std::byte* const* sources, std::size_t num_sources, std::byte* out, std::size_t numel) {
  switch (op) {
    case ReduceOp::kSum:
      return reduce_op<E, ReduceOp::kSum>(sources, num_sources, out, numel);
    case ReduceOp::kAvg:
      return reduce_op<E, ReduceOp::kAvg>(sources, num_sources, out, numel);
    case ReduceOp::kMin:
      return reduce_op<E, ReduceOp::kMin>(sources, num_sources, out, numel);
    case ReduceOp::kMax:
      return reduce_op<E, ReduceOp::kMax>(sources, num_sources, out, numel);
    case ReduceOp::kProduct:
      return reduce_op<E, ReduceOp::kProduct>(sources, num_sources, out, numel);
    default:
      break;
  }
  if constexpr (std::is_integral_v<typename E::Wide>) {
    switch (op) {
      case ReduceOp::kBand:
        return reduce_op<E, ReduceOp::kBand>(sources, num_sources, out, numel);
      case ReduceOp::kBor:
        return reduce_op<E, ReduceOp::kBor>(sources, num_sources, out, numel);
      default:
        return reduce_op<E, ReduceOp::kBxor>(sources, num_sources, out, numel);
    }
  }
}

void reduce_bool(ReduceOp op, const std::byte* const* sources, std::size_t num_sources, std::byte* out, std::size_t numel) {
  if (op == ReduceOp::kBxor) return reduce_op<Bool, ReduceOp::kBxor>(sources, num_sources, out, numel);
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kBor;
  return any ? reduce_op<Bool, ReduceOp::kMax>(sources, num_sources, out, numel)
             : reduce_op<Bool, ReduceOp::kMin>(sources, num_sources, out, numel);
}

void reduce_any(DType dtype, ReduceOp op, const std::byte* const* sources, std::size_t num_sources, std::byte* out, std::size_t numel) {
  switch (dtype) {
    case DType::kFloat32:
      return reduce_as<Plain<float, float>>(op, sources, num_sources, out, numel);
    case DType::kFloat64:
      return reduce_as<Plain<double, double>>(op, sources, num_sources, out, numel);
    case DType::kFloat16:
      return reduce_as<Plain<_Float16, float>>(op, sources, num_sources, out, numel);
    case DType::kBFloat16:
      return reduce_as<BFloat16>(op, sources, num_sources, out, numel);
    case DType::kInt8:  // kAvg divides the exact sum of integers
      return op == ReduceOp::kAvg ? reduce_as<Plain<std::int8_t, std::int32_t>>(op, sources, num_sources, out, numel)
                                  : reduce_as<Plain<std::int8_t, std::int8_t>>(op, sources, num_sources, out, numel);
    case DType::kUInt8:
      return op == ReduceOp::kAvg ? reduce_as<Plain<std::uint8_t, std::int32_t>>(op, sources, num_sources, out, numel)
                                  : reduce_as<Plain<std::uint8_t, std::uint8_t>>(op, sources, num_sources, out, numel);
    case DType::kInt32:
      return op == ReduceOp::kAvg ? reduce_as<Plain<std::int32_t, std::int64_t>>(op, sources, num_sources, out, numel)
                                  : reduce_as<Plain<std::int32_t, std::int32_t>>(op, sources, num_sources, out, numel);
    case DType::kInt64:
      return reduce_as<Plain<std::int64_t, std::int64_t>>(op, sources, num_sources, out, numel);
    case DType::kBool:
      return reduce_bool(op, sources, num_sources, out, numel);
    default:
      return;  // check_reducible() refuses this dtype
  }
}

}  // namespace shoal::runtime::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "runtime/core/check.h"

namespace shoal::runtime {

HWY_EXPORT(reduce_any);

void reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* out, std::size_t numel) {
  SHOAL_CHECK(check_reducible(dtype, op) && !sources.empty(), "a reduction that nobody can do");
  HWY_DYNAMIC_DISPATCH(reduce_any)(dtype, op, sources.data(), sources.size(), out, numel);
}

}  // namespace shoal::runtime
#endif
