// The optimizers' kernels as FakeCuda runs them: each thread's work, one thread after the other. For tests.
#pragma once

#include "fsdp/kernels/cuda/adam_body.h"
#include "runtime/device/kernels/on_host.h"

namespace shoal::fsdp {

inline void add_optim_kernels() {
  runtime::add_kernel("shoal_adam_f32", cuda::adam<float>);
  runtime::add_kernel("shoal_adam_f64", cuda::adam<double>);
}

}  // namespace shoal::fsdp
