// Element types of messages, and reduction operations.
//
// All dtypes can be moved. Only those that gloo or NCCL reduce can be reduced; others are refused by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/core/result.h"

namespace shoal::runtime {

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
  // moved, not reduced
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

// Parses torch's name without "torch.". InvalidArgument lists the known names.
Result<DType> parse_dtype(std::string_view name);
const char* dtype_name(DType dtype);
std::size_t dtype_bytes(DType dtype);

// kAvg divides the sum by the number of ranks, integers towards zero. For booleans kSum and kMax are "or", kProduct and kMin "and".
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax, kProduct };

Result<ReduceOp> parse_reduce_op(std::string_view name);  // "sum", "avg", "min", "max", "product"
const char* reduce_op_name(ReduceOp op);

// Unimplemented, with the dtype's name, unless reduce() supports it.
Result<void> check_reducible(DType dtype, ReduceOp op);

}  // namespace shoal::runtime
