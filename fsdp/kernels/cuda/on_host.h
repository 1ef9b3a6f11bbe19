// The optimizers' kernels as FakeCuda runs them: each thread's work, one thread after the other. For tests.
#pragma once

#include "fsdp/kernels/cuda/adam_body.h"
#include "fsdp/kernels/cuda/sgd_body.h"
#include "runtime/device/kernels/on_host.h"

namespace shoal::fsdp {

inline void add_optim_kernels() {
  runtime::add_kernel("shoal_adam_f32", cuda::adam<float>);
  runtime::add_kernel("shoal_adam_f64", cuda::adam<double>);
  runtime::add_kernel("shoal_sgd_f32", cuda::sgd<float>);
  runtime::add_kernel("shoal_sgd_f64", cuda::sgd<double>);
}

}  // namespace shoal::fsdp
