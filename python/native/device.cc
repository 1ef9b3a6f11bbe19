#include <fmt/format.h>

#include "python/native/bindings.h"
#include "runtime/device/kernels/device_kernels.h"
#include "runtime/transport/nccl/nccl_api.h"

namespace shoal::python {

namespace {

// A device as other ranks compare it. First comes its identity, the same in all processes. Then come the reasons why it, NCCL and kernels
// cannot be used, each empty if they can, and the identities of all devices that this process sees.
using Offer = std::tuple<std::string, std::string, std::string, std::string, std::vector<std::string>>;

std::string text_of(const runtime::CudaUuid& uuid) {
  std::string out;
  for (const char c : uuid.bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string text_of(const Error& error) { return error.hint().empty() ? error.message() : error.message() + "; " + error.hint(); }

Offer device_offer(int number) {
  const nb::gil_scoped_release release;
  const auto nccl = runtime::NcclApi::load();
  const std::string no_nccl = nccl ? "" : text_of(nccl.error());
  const auto cuda = runtime::CudaApi::load();
  if (!cuda) return {"", text_of(cuda.error()), no_nccl, "", {}};
  const auto device = runtime::Device::open(**cuda, number);
  if (!device) return {"", text_of(device.error()), no_nccl, "", {}};
  const auto kernels = runtime::DeviceKernels::load(*device);
  std::vector<std::string> visible;  // without a context on the others, which would take memory there
  for (int other = 0; other < runtime::Device::count(**cuda).value_or(0); ++other) {
    int handle = 0;
    runtime::CudaUuid uuid;
    if ((*cuda)->device_get(&handle, other) == runtime::cuda::kSuccess && (*cuda)->device_uuid(&uuid, handle) == runtime::cuda::kSuccess)
      visible.push_back(text_of(uuid));
  }
  return {text_of((*device)->uuid()), "", no_nccl, kernels ? "" : text_of(kernels.error()), visible};
}

}  // namespace

void bind_device(nb::module_& m) {
  m.def(
      "device_offer", &device_offer, nb::arg("number"),
      "A CUDA device's identity, why Shoal cannot use it, NCCL, or kernels on it (\"\": it can), and the identities of all visible ones.");
}

}  // namespace shoal::python
