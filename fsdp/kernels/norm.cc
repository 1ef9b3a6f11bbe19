#include "fsdp/kernels/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "fsdp/kernels/cast.h"
#include "fsdp/kernels/threads.h"

// foreach_target.h includes this file again for each instruction set.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "fsdp/kernels/norm.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shoal::fsdp::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Uses four partial sums, because additions to a single one would wait for each other.
double square_sum_f32(const float* data, std::size_t numel) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> half;
  const std::size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d), b = a, c = a, e = a;
  const auto square = [&](const float* from, auto sum) HWY_ATTR {
    const auto x = hn::PromoteTo(d, hn::LoadU(half, from));
    return hn::MulAdd(x, x, sum);
  };
  std::size_t i = 0;
  for (; i + 4 * lanes <= numel; i += 4 * lanes) {
    hwy::Prefetch(data + i + 512);
    hwy::Prefetch(data + i + 512 + 2 * lanes);
    a = square(data + i, a);
    b = square(data + i + lanes, b);
    c = square(data + i + 2 * lanes, c);
    e = square(data + i + 3 * lanes, e);
  }
  double rest = 0;
  for (; i < numel; ++i) rest += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e)))) + rest;
}

}  // namespace shoal::fsdp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shoal::fsdp {

HWY_EXPORT(square_sum_f32);

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double none(double order) { return order == -kInfinity ? kInfinity : 0; }

double joined(double order, double a, double b) {
  if (std::abs(order) != kInfinity) return a + b;
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return order > 0 ? std::max(a, b) : std::min(a, b);
}

template <class T>
double sum_of(const T* data, std::size_t numel, double order) {
  double sum = none(order);
  for (std::size_t i = 0; i < numel; ++i) {
    const auto x = std::abs(static_cast<double>(data[i]));
    if (std::abs(order) == kInfinity) {
      sum = joined(order, sum, x);
    } else if (order == 0) {
      sum += x != 0;
    } else {
      sum += order == 1 ? x : order == 2 ? x * x : std::pow(x, order);
    }
  }
  return sum;
}

double in_one_thread(DType dtype, const std::byte* data, std::size_t numel, double order) {
  if (dtype == DType::kFloat64) return sum_of(reinterpret_cast<const double*>(data), numel, order);
  constexpr std::size_t kChunk = 1024;
  alignas(64) float scratch[kChunk];
  double sum = none(order);
  const bool direct = dtype == DType::kFloat32;
  for (std::size_t i = 0; i < numel; i += kChunk) {
    const std::size_t count = std::min(kChunk, numel - i);
    const float* chunk = reinterpret_cast<const float*>(data + i * dtype_bytes(dtype));
    if (!direct) {
      cast(dtype, data + i * dtype_bytes(dtype), DType::kFloat32, reinterpret_cast<std::byte*>(scratch), count);
      chunk = scratch;
    }
    sum = joined(order, sum, order == 2 ? HWY_DYNAMIC_DISPATCH(square_sum_f32)(chunk, count) : sum_of(chunk, count, order));
  }
  return sum;
}

}  // namespace

double power_sum(DType dtype, const std::byte* data, std::size_t numel, double order, int num_threads) {
  std::vector<double> sums(static_cast<std::size_t>(std::max(num_threads, 1)), none(order));
  over_threads(numel, num_threads, [&](std::size_t begin, std::size_t end, int part) {
    sums[static_cast<std::size_t>(part)] = in_one_thread(dtype, data + begin * dtype_bytes(dtype), end - begin, order);
  });
  double sum = none(order);
  for (const double s : sums) sum = joined(order, sum, s);
  return sum;
}

void row_power_sums(DType dtype, const std::byte* data, std::size_t rows, std::size_t row_numel, double order, double* out,
                    int num_threads) {
  if (row_numel == 0) {
    std::fill(out, out + rows, none(order));
    return;
  }
  const std::size_t bytes = row_numel * dtype_bytes(dtype);
  over_threads(rows * row_numel, num_threads, [&](std::size_t begin, std::size_t end, int) {
    // A row belongs to the piece that has its first element.
    const auto row_at = [&](std::size_t element) { return (element + row_numel - 1) / row_numel; };
    for (std::size_t row = row_at(begin); row < row_at(end); ++row) out[row] = in_one_thread(dtype, data + row * bytes, row_numel, order);
  });
}

}  // namespace shoal::fsdp
#endif
