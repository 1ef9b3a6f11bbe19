// The dtypes in NCCL's numbers.
#pragma once

#include <algorithm>
#include <utility>

#include "runtime/core/dtype.h"
#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::runtime {

inline constexpr std::pair<DType, NcclType> kNcclTypes[] = {
    {DType::kFloat32, nccl::kFloat32},   {DType::kFloat64, nccl::kFloat64}, {DType::kFloat16, nccl::kFloat16},
    {DType::kBFloat16, nccl::kBFloat16}, {DType::kInt8, nccl::kInt8},       {DType::kInt32, nccl::kInt32},
    {DType::kInt64, nccl::kInt64},
};

// All others travel as bytes, bool as 0 and 1.
constexpr NcclType nccl_type_of(DType dtype) {
  const auto* const found = std::ranges::find(kNcclTypes, dtype, &std::pair<DType, NcclType>::first);
  return found == std::end(kNcclTypes) ? nccl::kUInt8 : found->second;
}
constexpr DType dtype_of(NcclType type) {
  const auto* const found = std::ranges::find(kNcclTypes, type, &std::pair<DType, NcclType>::second);
  return found == std::end(kNcclTypes) ? DType::kUInt8 : found->first;
}

}  // namespace shoal::runtime
