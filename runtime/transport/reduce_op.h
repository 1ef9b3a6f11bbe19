// The reductions of collectives, and the dtypes that they take.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/core/dtype.h"
#include "runtime/core/result.h"

namespace shoal::runtime {

// kAvg divides the sum by the number of ranks; for integers, the quotient is rounded towards zero. For booleans, kSum and kMax are "or",
// kProduct and kMin "and". The bitwise ones take integers and booleans. Ranks read each other's numbers: new ones are added at the end.
enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax, kProduct, kBand, kBor, kBxor };
inline constexpr int kNumReduceOps = 8;

Result<ReduceOp> parse_reduce_op(std::string_view name);  // "sum", "avg", "min", "max", "product", "band", "bor", "bxor"
const char* reduce_op_name(ReduceOp op);

// Returns Unimplemented, with the dtype's name, unless reduce() has this combination. Supported are the dtypes that gloo or NCCL reduce.
Result<void> check_reducible(DType dtype, ReduceOp op);

}  // namespace shoal::runtime
