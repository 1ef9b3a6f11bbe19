#include <fmt/format.h>

#include "runtime/device/cuda_api.h"

namespace shoal::runtime {

Error from_cuda(const CudaApi& api, CudaStatus status, std::string_view what) {
  const char *name = nullptr, *text = nullptr;
  if (api.error_name(status, &name) != cuda::kSuccess || name == nullptr) name = "unknown";
  if (api.error_string(status, &text) != cuda::kSuccess || text == nullptr) text = "an unknown error";
  std::string message = fmt::format("{} failed: {} (CUDA {}, {})", what, text, status, name);
  switch (status) {
    case cuda::kOutOfMemory:
      return resource_exhausted(std::move(message))
          .with_reason("DeviceMemory")
          .with_hint("use more ranks, smaller units or reshard_after_forward; other processes may use the device, too");
    case cuda::kInvalidValue:
    case cuda::kInvalidDevice:
      return invalid_argument(std::move(message));
    case cuda::kNoDevice:
    case cuda::kStubLibrary:
    case cuda::kDriverMismatch:
      return unavailable(std::move(message)).with_reason("NoCuda").with_hint("nvidia-smi shows the driver and its devices");
    case cuda::kNotSupported:
      return unimplemented(std::move(message));
    case cuda::kInvalidImage:
    case cuda::kNoBinaryForGpu:
    case cuda::kUnsupportedPtx:
      return unimplemented(std::move(message))
          .with_reason("NoKernels")
          .with_hint("Shoal has kernels for sm_80, sm_90 and sm_100, and PTX for later devices; update the driver");
    default:
      // Errors of a kernel (an illegal address, a failed launch) end the context, hence the process's use of the device.
      return unavailable(std::move(message)).with_reason("DeviceFailed").with_hint("restart the process; dmesg shows faults of the device");
  }
}

}  // namespace shoal::runtime
