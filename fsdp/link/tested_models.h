// The models of a HostLink's tests, and how their ranks use them.
#pragma once

#include <functional>

#include "fsdp/layout/layout.h"

namespace shoal::fsdp {

// Parameters in place, sharded on another dim, in half precision, with gradients in half precision, large, and with fewer rows than ranks.
inline Layout layout_of(int unit) {
  Parameter half{"half", {4, 3}};
  half.compute_dtype = DType::kBFloat16;
  half.reduce_dtype = DType::kFloat32;
  Parameter columns{"columns", {3, 7}};
  columns.dim = 1;
  Parameter coarse{"coarse", {9, 4}};
  coarse.reduce_dtype = DType::kBFloat16;
  if (unit == 0) return Layout::make({{"w", {7, 5}}, columns, {"large", {1024, 300}}}).value();
  return Layout::make({half, coarse, {"b", {1}}, {"unused", {2, 2}}}).value();
}

// How the ranks of a test use their model.
struct Uses {
  std::function<bool(int rank, int step, std::size_t unit)> skips = [](int, int, std::size_t) { return false; };
  std::function<int(int rank, int step)> evaluations = [](int, int) { return 0; };  // before each step
  std::function<bool(int rank, int step)> fails = [](int, int) { return false; };   // in backward; then all ranks start over
};

}  // namespace shoal::fsdp
