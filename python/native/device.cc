#include <fmt/format.h>

#include "python/native/bindings.h"
#include "runtime/device/kernels/device_kernels.h"
#include "runtime/transport/nccl/api/nccl_api.h"

namespace shoal::python {

namespace {

// A device as other ranks compare it.
struct DeviceOffer {
  std::string identity;                      // the same in all processes; empty if the device cannot be used
  std::string no_cuda, no_nccl, no_kernels;  // the reasons why this process cannot use it; empty: it can
  std::vector<std::string> visible;          // the identities of all devices that this process sees
};

std::string text_of(const runtime::CudaUuid& uuid) {
  std::string out;
  for (const char c : uuid.bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string text_of(const Error& error) { return error.hint().empty() ? error.message() : error.message() + "; " + error.hint(); }

DeviceOffer device_offer(int number) {
  const GilReleased release;
  const auto nccl = runtime::NcclApi::load();
  const std::string no_nccl = nccl ? "" : text_of(nccl.error());
  const auto cuda = runtime::CudaApi::load();
  if (!cuda) return {.identity = "", .no_cuda = text_of(cuda.error()), .no_nccl = no_nccl, .no_kernels = "", .visible = {}};
  const auto device = runtime::Device::open(**cuda, number);
  if (!device) return {.identity = "", .no_cuda = text_of(device.error()), .no_nccl = no_nccl, .no_kernels = "", .visible = {}};
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
  nb::class_<DeviceOffer>(m, "DeviceOffer", "A CUDA device as other ranks compare it; reasons are \"\" where there are none.")
      .def_ro("identity", &DeviceOffer::identity, "The same in all processes.")
      .def_ro("no_cuda", &DeviceOffer::no_cuda, "Why Shoal cannot use the device.")
      .def_ro("no_nccl", &DeviceOffer::no_nccl, "Why it cannot use NCCL.")
      .def_ro("no_kernels", &DeviceOffer::no_kernels, "Why this build cannot compute on it.")
      .def_ro("visible", &DeviceOffer::visible, "The identities of all devices that this process sees.");
  m.def("device_offer", &device_offer, nb::arg("number"));
}

}  // namespace shoal::python
