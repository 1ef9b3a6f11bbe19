#include "runtime/transport/dtype.h"

#include <array>
#include <string>

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {

struct Named {
  const char* name;
  std::size_t bytes;
};

constexpr std::array<Named, 19> kDTypes = {{{"float32", 4},
                                            {"float64", 8},
                                            {"float16", 2},
                                            {"bfloat16", 2},
                                            {"int8", 1},
                                            {"uint8", 1},
                                            {"int32", 4},
                                            {"int64", 8},
                                            {"bool", 1},
                                            {"int16", 2},
                                            {"uint16", 2},
                                            {"uint32", 4},
                                            {"uint64", 8},
                                            {"complex64", 8},
                                            {"complex128", 16},
                                            {"float8_e4m3fn", 1},
                                            {"float8_e5m2", 1},
                                            {"float8_e4m3fnuz", 1},
                                            {"float8_e5m2fnuz", 1}}};
constexpr std::array<const char*, 5> kOps = {"sum", "avg", "min", "max", "product"};

const Named& of(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  SHOAL_CHECK(i < kDTypes.size(), "no such dtype");
  return kDTypes[i];
}

}  // namespace

Result<DType> parse_dtype(std::string_view name) {
  std::string known;
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
    known += (i > 0 ? ", " : "") + std::string(kDTypes[i].name);
  }
  return fail(invalid_argument("tensors of dtype " + std::string(name) + " are not moved between ranks").with_hint("use one of " + known));
}

const char* dtype_name(DType dtype) { return of(dtype).name; }
std::size_t dtype_bytes(DType dtype) { return of(dtype).bytes; }

Result<ReduceOp> parse_reduce_op(std::string_view name) {
  for (std::size_t i = 0; i < kOps.size(); ++i) {
    if (name == kOps[i]) return static_cast<ReduceOp>(i);
  }
  return fail(invalid_argument("there is no reduction " + std::string(name)).with_hint("sum, avg, min, max or product"));
}

const char* reduce_op_name(ReduceOp op) { return kOps.at(static_cast<std::size_t>(op)); }

Result<void> check_reducible(DType dtype, ReduceOp op) {
  if (dtype > DType::kBool) {
    return fail(unimplemented(std::string("tensors of dtype ") + dtype_name(dtype) + " are moved, but not reduced")
                    .with_hint("reduce in float32, float64, float16, bfloat16, int8, uint8, int32, int64 or bool"));
  }
  if (dtype == DType::kBool && op == ReduceOp::kAvg) {
    return fail(unimplemented("bool tensors have no average").with_hint("sum of bool is \"or\"; convert to a number to count"));
  }
  return {};
}

}  // namespace shoal::runtime
