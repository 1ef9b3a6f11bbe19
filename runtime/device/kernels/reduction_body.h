// The reductions of collectives: out[i] = sources[0][i] op sources[1][i] op ..., with the bits of runtime/transport/reduction.h.
#pragma once

#include <type_traits>

#include "runtime/device/kernels/bodies.h"

namespace shoal::runtime::kernels {

enum class Reduction : std::uint8_t { kSum, kProduct, kMax, kMin, kMean };

struct ReductionArguments {
  const void* sources[kMaxSources];
  void* out;  // may be one of the sources
  std::uint64_t numel;
  int num_sources;
  DTypeNumber dtype;
  Reduction op;
};

template <class W>
SHOAL_HOST_DEVICE inline W joined(Reduction op, W a, W b) {
  if constexpr (std::is_floating_point_v<W>) {
    if ((op == Reduction::kMin || op == Reduction::kMax) && (a != a || b != b)) return a != a ? a : b;  // a NaN is the result, as in torch
  }
  switch (op) {
    case Reduction::kMin:
      return b < a ? b : a;
    case Reduction::kMax:
      return a < b ? b : a;
    case Reduction::kProduct:
      if constexpr (std::is_floating_point_v<W>) {
        return a * b;
      } else {
        return static_cast<W>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
      }
    default:
      if constexpr (std::is_floating_point_v<W>) {
        return a + b;
      } else {
        return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
      }
  }
}

// How elements are read and written: T is the type in memory, W the type for computation.
template <class T, class W>
struct Integers {
  SHOAL_HOST_DEVICE static W get(const ReductionArguments&, const void* data, std::uint64_t i) {
    return static_cast<W>(static_cast<const T*>(data)[i]);
  }
  SHOAL_HOST_DEVICE static void put(const ReductionArguments& a, std::uint64_t i, W x) { static_cast<T*>(a.out)[i] = static_cast<T>(x); }
};
template <class W>
struct Floats {
  SHOAL_HOST_DEVICE static W get(const ReductionArguments& a, const void* data, std::uint64_t i) { return load<W>(a.dtype, data, i); }
  SHOAL_HOST_DEVICE static void put(const ReductionArguments& a, std::uint64_t i, W x) { store<W>(a.dtype, a.out, i, x); }
};

template <class W, class Elements>
SHOAL_HOST_DEVICE inline void reduce_elements(Thread thread, const ReductionArguments& a) {
  for (std::uint64_t i = thread.number; i < a.numel; i += thread.total) {
    W x = Elements::get(a, a.sources[0], i);
    for (int s = 1; s < a.num_sources; ++s) x = joined<W>(a.op, x, Elements::get(a, a.sources[s], i));
    if (a.op == Reduction::kMean) x = static_cast<W>(x / static_cast<W>(a.num_sources));
    Elements::put(a, i, x);
  }
}

// The mean of integers is the quotient of their exact sum.
template <class T, class Wider>
SHOAL_HOST_DEVICE inline void reduce_integers(Thread thread, const ReductionArguments& a) {
  if (a.op == Reduction::kMean) {
    reduce_elements<Wider, Integers<T, Wider>>(thread, a);
  } else {
    reduce_elements<T, Integers<T, T>>(thread, a);
  }
}

SHOAL_HOST_DEVICE inline void reduce(Thread thread, const ReductionArguments& a) {
  switch (static_cast<DType>(a.dtype)) {
    case DType::kFloat64:
      return reduce_elements<double, Floats<double>>(thread, a);
    case DType::kInt8:
      return reduce_integers<std::int8_t, std::int32_t>(thread, a);
    case DType::kUInt8:
      return reduce_integers<std::uint8_t, std::int32_t>(thread, a);
    case DType::kInt32:
      return reduce_integers<std::int32_t, std::int64_t>(thread, a);
    case DType::kInt64:
      return reduce_integers<std::int64_t, std::int64_t>(thread, a);
    default:
      return reduce_elements<float, Floats<float>>(thread, a);
  }
}

}  // namespace shoal::runtime::kernels
