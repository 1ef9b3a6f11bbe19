// Fused Adam and AdamW on a device: the options and the formula of fsdp/kernels/adam.h, one kernel for all shards.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "fsdp/kernels/adam.h"
#include "runtime/device/device.h"

namespace shoal::fsdp {

class DeviceAdam {
 public:
  // The kernels of this build; null if it had no nvcc.
  static const void* embedded();
  // Returns Unimplemented/NoKernels if `image` is null or has no code for this device.
  static Result<DeviceAdam> load(std::shared_ptr<const runtime::Device> device, const void* image = embedded());

  // One step, counted from 1, in the order of `stream`; the shards' arrays are memory of the device. Dtypes are floating-point; the
  // arithmetic is fp64 if the parameters are, else fp32. Starts a kernel for each 64 shards, and allocates nothing.
  Result<void> step(const Adam& options, std::int64_t step, const std::array<DType, kMaxArrays>& dtypes, std::span<const Shard> shards,
                    runtime::CudaStream stream) const;

 private:
  DeviceAdam() = default;

  std::shared_ptr<const runtime::Device> device_;
  runtime::KernelModule module_;
  runtime::CudaFunction f32_ = nullptr, f64_ = nullptr;
};

}  // namespace shoal::fsdp
