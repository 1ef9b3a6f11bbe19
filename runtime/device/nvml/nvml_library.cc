#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "runtime/core/library.h"
#include "runtime/device/nvml/nvml_api.h"

namespace shoal::runtime {

namespace {

// Functions that an older library lacks. The library is loaded already, and stays so.
void find_later(NvmlApi& api) {
  void* const library = dlopen(api.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto find = [&](auto& function, auto... names) {
    for (const char* name : {names...}) {
      if (function == nullptr) function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    }
  };
  find(api.processes, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2");
  find(api.remapped_rows, "nvmlDeviceGetRemappedRows");
  find(api.mig_mode, "nvmlDeviceGetMigMode");
  find(api.max_slices, "nvmlDeviceGetMaxMigDeviceCount");
  find(api.slice, "nvmlDeviceGetMigDeviceHandleByIndex");
  dlclose(library);  // returns the reference that this dlopen took
}

Result<NvmlApi> open_nvml(const std::string& path) {
  NvmlApi api;
  // A suffix such as _v2 is the version of the function whose arguments the table has.
  SHOAL_TRY(api.path, load_functions(path, [&](const auto& find) {
              find(api.init, "nvmlInit_v2");
              find(api.error_string, "nvmlErrorString");
              find(api.count, "nvmlDeviceGetCount_v2");
              find(api.by_index, "nvmlDeviceGetHandleByIndex_v2");
              find(api.name, "nvmlDeviceGetName");
              find(api.uuid, "nvmlDeviceGetUUID");
              find(api.memory, "nvmlDeviceGetMemoryInfo");
              find(api.utilization, "nvmlDeviceGetUtilizationRates");
              find(api.compute_mode, "nvmlDeviceGetComputeMode");
              find(api.ecc_errors, "nvmlDeviceGetTotalEccErrors");
              find(api.retirement_pending, "nvmlDeviceGetRetiredPagesPendingStatus");
            }));
  find_later(api);
  if (const auto status = api.init(); status != nvml::kSuccess) return fail(from_nvml(api, status, "starting " + api.path));
  return api;
}

Result<NvmlApi> open_any_nvml() {
  std::vector<std::string> paths{"libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1"};
  if (const char* named = std::getenv("SHOAL_NVML_LIBRARY"); named != nullptr && *named != 0) paths.insert(paths.begin(), named);
  auto api = open_first("NVML", paths, &open_nvml);
  if (api) return api;
  return fail(std::move(api).error().with_reason("NoNvml").with_hint(
      "the GPU's driver brings it, so install the driver whole; SHOAL_NVML_LIBRARY names a libnvidia-ml.so.1 elsewhere"));
}

}  // namespace

Result<const NvmlApi*> NvmlApi::load() {
  static const Result<NvmlApi> api = open_any_nvml();
  if (!api) return fail(api.error());
  return &*api;
}

Error from_nvml(const NvmlApi& api, NvmlStatus status, const std::string& what) {
  return unavailable(what + " failed in NVML: " + api.error_string(status)).with_reason("Nvml");
}

}  // namespace shoal::runtime
