// The kernels as FakeCuda runs them: each thread's work, one thread after the other. For tests.
#pragma once

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/device/kernels/bodies.h"
#include "runtime/device/kernels/reduction_body.h"

namespace shoal::runtime {

template <class Arguments>
void add_kernel(const char* name, void (*body)(kernels::Thread, const Arguments&)) {
  FakeCuda::machine().add_kernel(name, {sizeof(Arguments)}, [body](void* const* arguments, std::size_t num_threads) {
    for (std::uint64_t i = 0; i < num_threads; ++i) body({i, num_threads}, *static_cast<const Arguments*>(arguments[0]));
  });
}

inline void add_device_kernels() {
  add_kernel("shoal_cast", kernels::cast);
  add_kernel("shoal_sum", kernels::sum);
  add_kernel("shoal_reduce", kernels::reduce);
  add_kernel("shoal_pack", kernels::pack);
  add_kernel("shoal_square", kernels::square);
  add_kernel("shoal_square_sums", kernels::square_sums);
  add_kernel("shoal_square_total", kernels::square_total);
}

}  // namespace shoal::runtime
