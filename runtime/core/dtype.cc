#include "runtime/core/dtype.h"

#include <array>

#include "runtime/core/check.h"

namespace shoal {

namespace {

struct Named {
  const char* name;
  std::size_t bytes;
};

constexpr std::array<Named, kNumDTypes> kDTypes = {{{"float32", 4},
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

const Named& named(DType dtype) {
  const auto i = static_cast<std::size_t>(dtype);
  SHOAL_CHECK(i < kDTypes.size(), "no such dtype");
  return kDTypes[i];
}

}  // namespace

std::optional<DType> find_dtype(std::string_view name) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

const char* dtype_name(DType dtype) { return named(dtype).name; }
std::size_t dtype_bytes(DType dtype) { return named(dtype).bytes; }

}  // namespace shoal
