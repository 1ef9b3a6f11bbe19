// The optimizers' kernels by the names under which the driver finds them. Their arithmetic is in adam_body.h and sgd_body.h.
#include "fsdp/kernels/cuda/adam_body.h"
#include "fsdp/kernels/cuda/sgd_body.h"

namespace c = shoal::fsdp::cuda;

__device__ inline c::Thread thread() {
  return {static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<std::uint64_t>(gridDim.x) * blockDim.x};
}

extern "C" __global__ void __launch_bounds__(256) shoal_adam_f32(const __grid_constant__ c::AdamArguments<float> a) {
  c::adam(thread(), a);
}
extern "C" __global__ void __launch_bounds__(256) shoal_adam_f64(const __grid_constant__ c::AdamArguments<double> a) {
  c::adam(thread(), a);
}
extern "C" __global__ void __launch_bounds__(256) shoal_sgd_f32(const __grid_constant__ c::SgdArguments<float> a) {
  c::sgd(thread(), a);
}
extern "C" __global__ void __launch_bounds__(256) shoal_sgd_f64(const __grid_constant__ c::SgdArguments<double> a) {
  c::sgd(thread(), a);
}
