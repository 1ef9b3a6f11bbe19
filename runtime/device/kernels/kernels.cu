// The kernels by the names under which the driver finds them. Their arithmetic is in bodies.h and reduction_body.h.
#include "runtime/device/kernels/bodies.h"
#include "runtime/device/kernels/reduction_body.h"

namespace k = shoal::runtime::kernels;

__device__ inline k::Thread thread() {
  return {static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<std::uint64_t>(gridDim.x) * blockDim.x};
}

extern "C" __global__ void shoal_cast(const __grid_constant__ k::CastArguments a) { k::cast(thread(), a); }
extern "C" __global__ void shoal_sum(const __grid_constant__ k::SumArguments a) { k::sum(thread(), a); }
extern "C" __global__ void shoal_reduce(const __grid_constant__ k::ReductionArguments a) { k::reduce(thread(), a); }
extern "C" __global__ void shoal_pack(const __grid_constant__ k::PackArguments a) { k::pack(thread(), a); }
extern "C" __global__ void shoal_square(const __grid_constant__ k::SquareArguments a) { k::square(thread(), a); }
extern "C" __global__ void shoal_square_sums(const __grid_constant__ k::SquareArguments a) { k::square_sums(thread(), a); }
extern "C" __global__ void shoal_square_total(const __grid_constant__ k::SquareArguments a) { k::square_total(thread(), a); }
