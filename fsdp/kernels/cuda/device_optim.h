// Fused optimizers on a device: the options and formulas of fsdp/kernels/adam.h and sgd.h, one kernel for all shards.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "fsdp/kernels/adam.h"
#include "fsdp/kernels/sgd.h"
#include "runtime/device/device.h"

namespace shoal::fsdp {

// The shards' arrays are memory of the device. Dtypes are floating-point; the arithmetic is fp64 if the parameters are, else fp32. A step
// starts a kernel for each 64 shards in the order of `stream`, and allocates nothing.
class DeviceOptim {
 public:
  // The kernels of this build; null if it had no nvcc.
  static const void* embedded();
  // Returns Unimplemented/NoKernels if `image` is null or has no code for this device.
  static Result<DeviceOptim> load(std::shared_ptr<const runtime::Device> device, const void* image = embedded());

  // `step` counts from 1.
  Result<void> adam(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards,
                    runtime::CudaStream stream) const;
  Result<void> sgd(const Sgd& options, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards,
                   runtime::CudaStream stream) const;

 private:
  DeviceOptim() = default;

  std::shared_ptr<const runtime::Device> device_;
  runtime::KernelModule module_;
  runtime::CudaFunction adam_f32_ = nullptr, adam_f64_ = nullptr, sgd_f32_ = nullptr, sgd_f64_ = nullptr;
};

}  // namespace shoal::fsdp
