// The type of a tensor's elements, in parameters and in messages among ranks. Processes read each other's numbers of dtypes in shared
// memory, so a new dtype is added at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shoal {

enum class DType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kUInt8,
  kInt32,
  kInt64,
  kBool,
  kInt16,
  kUInt16,
  kUInt32,
  kUInt64,
  kComplex64,
  kComplex128,
  kFloat8E4M3FN,
  kFloat8E5M2,
  kFloat8E4M3FNUZ,
  kFloat8E5M2FNUZ,
};
inline constexpr int kNumDTypes = 19;

std::optional<DType> find_dtype(std::string_view name);  // torch's name without "torch."
const char* dtype_name(DType dtype);
std::size_t dtype_bytes(DType dtype);

}  // namespace shoal
