#include "runtime/transport/reduce_op.h"

#include <array>
#include <string>

namespace shoal::runtime {

namespace {

constexpr std::array<const char*, kNumReduceOps> kOps = {"sum", "avg", "min", "max", "product", "band", "bor", "bxor"};

bool has_sum(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt32:
    case DType::kInt64:
    case DType::kBool:
      return true;
    default:
      return false;
  }
}

bool is_bitwise(ReduceOp op) { return op == ReduceOp::kBand || op == ReduceOp::kBor || op == ReduceOp::kBxor; }

bool is_floating(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat64 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

}  // namespace

Result<ReduceOp> parse_reduce_op(std::string_view name) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (name == kOps[i]) return static_cast<ReduceOp>(i);
  }
  return fail(invalid_argument("there is no reduction " + std::string(name)).with_hint("sum, avg, min, max, product, band, bor or bxor"));
}

const char* reduce_op_name(ReduceOp op) { return kOps.at(static_cast<std::size_t>(op)); }

Result<void> check_reducible(DType dtype, ReduceOp op) {
  if (!has_sum(dtype)) {
    return fail(unimplemented(std::string("tensors of dtype ") + dtype_name(dtype) + " are moved, but not reduced")
                    .with_hint("reduce in float32, float64, float16, bfloat16, int8, uint8, int32, int64 or bool"));
  }
  if (dtype == DType::kBool && op == ReduceOp::kAvg) {
    return fail(unimplemented("bool tensors have no average").with_hint("sum of bool is \"or\"; convert to a number to count"));
  }
  if (is_bitwise(op) && is_floating(dtype)) {
    return fail(unimplemented(std::string("tensors of dtype ") + dtype_name(dtype) + " have no reduction " + reduce_op_name(op))
                    .with_hint("bitwise reductions take integers and booleans"));
  }
  return {};
}

}  // namespace shoal::runtime
