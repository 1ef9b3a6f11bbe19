// Elements of tensors, as kernels on devices and their references on the host read and write them. Compiled by nvcc and by the C++
// compiler.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/core/dtype.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#define SHOAL_HOST_DEVICE __host__ __device__
#else
#include <cmath>
#define SHOAL_HOST_DEVICE
#endif

namespace shoal::runtime::kernels {

// Kernels get a dtype as a number.
using DTypeNumber = std::uint8_t;
inline DTypeNumber number(DType dtype) { return static_cast<DTypeNumber>(dtype); }
inline constexpr auto kWide = static_cast<DTypeNumber>(DType::kFloat64);

SHOAL_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t out;
  memcpy(&out, &x, sizeof out);
  return out;
}
SHOAL_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

SHOAL_HOST_DEVICE inline float from_bf16(std::uint16_t x) { return float_of(static_cast<std::uint32_t>(x) << 16); }
// Rounds to nearest, ties to even; subnormals are kept, and every NaN becomes 0x7fc0.
SHOAL_HOST_DEVICE inline std::uint16_t to_bf16(float x) {
  const std::uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#ifdef __CUDACC__
SHOAL_HOST_DEVICE inline float from_f16(std::uint16_t x) { return __half2float(__ushort_as_half(x)); }
SHOAL_HOST_DEVICE inline std::uint16_t to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
#else
inline float from_f16(std::uint16_t x) {
  _Float16 half;
  std::memcpy(&half, &x, sizeof half);
  return static_cast<float>(half);
}
inline std::uint16_t to_f16(float x) {
  const auto half = static_cast<_Float16>(x);
  std::uint16_t out;
  std::memcpy(&out, &half, sizeof out);
  return out;
}
#endif

// An element as T, float or double. Between fp64 and the 16-bit types it passes through fp32, as in torch.
template <class T>
SHOAL_HOST_DEVICE inline T load(DTypeNumber dtype, const void* data, std::uint64_t i) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat64:
      return static_cast<T>(static_cast<const double*>(data)[i]);
    case DType::kBFloat16:
      return static_cast<T>(from_bf16(static_cast<const std::uint16_t*>(data)[i]));
    case DType::kFloat16:
      return static_cast<T>(from_f16(static_cast<const std::uint16_t*>(data)[i]));
    default:
      return static_cast<T>(static_cast<const float*>(data)[i]);
  }
}

template <class T>
SHOAL_HOST_DEVICE inline void store(DTypeNumber dtype, void* data, std::uint64_t i, T x) {
  switch (static_cast<DType>(dtype)) {
    case DType::kFloat64:
      static_cast<double*>(data)[i] = static_cast<double>(x);
      return;
    case DType::kBFloat16:
      static_cast<std::uint16_t*>(data)[i] = to_bf16(static_cast<float>(x));
      return;
    case DType::kFloat16:
      static_cast<std::uint16_t*>(data)[i] = to_f16(static_cast<float>(x));
      return;
    default:
      static_cast<float*>(data)[i] = static_cast<float>(x);
  }
}

}  // namespace shoal::runtime::kernels
