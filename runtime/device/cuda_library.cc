#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include "runtime/device/cuda_api.h"

namespace shoal::runtime {

namespace {

// Every function with the name of its symbol. A suffix is the version whose arguments the table has.
template <class Visit>
void for_each_function(CudaApi& api, Visit&& visit) {
  visit(api.init, "cuInit");
  visit(api.driver_version, "cuDriverGetVersion");
  visit(api.error_name, "cuGetErrorName");
  visit(api.error_string, "cuGetErrorString");
  visit(api.device_count, "cuDeviceGetCount");
  visit(api.device_get, "cuDeviceGet");
  visit(api.device_name, "cuDeviceGetName");
  visit(api.device_uuid, "cuDeviceGetUuid_v2");
  visit(api.device_attribute, "cuDeviceGetAttribute");
  visit(api.context_retain, "cuDevicePrimaryCtxRetain");
  visit(api.context_release, "cuDevicePrimaryCtxRelease_v2");
  visit(api.context_push, "cuCtxPushCurrent_v2");
  visit(api.context_pop, "cuCtxPopCurrent_v2");
  visit(api.context_device, "cuCtxGetDevice");
  visit(api.stream_create, "cuStreamCreate");
  visit(api.stream_destroy, "cuStreamDestroy_v2");
  visit(api.stream_synchronize, "cuStreamSynchronize");
  visit(api.stream_wait_event, "cuStreamWaitEvent");
  visit(api.event_create, "cuEventCreate");
  visit(api.event_destroy, "cuEventDestroy_v2");
  visit(api.event_record, "cuEventRecord");
  visit(api.event_query, "cuEventQuery");
  visit(api.event_elapsed, "cuEventElapsedTime");
  visit(api.memory_allocate, "cuMemAlloc_v2");
  visit(api.memory_free, "cuMemFree_v2");
  visit(api.memory_info, "cuMemGetInfo_v2");
  visit(api.copy, "cuMemcpyAsync");
  visit(api.set, "cuMemsetD8Async");
  visit(api.pointer_attribute, "cuPointerGetAttribute");
  visit(api.ipc_memory_handle, "cuIpcGetMemHandle");
  visit(api.ipc_memory_open, "cuIpcOpenMemHandle_v2");
  visit(api.ipc_memory_close, "cuIpcCloseMemHandle");
  visit(api.ipc_event_handle, "cuIpcGetEventHandle");
  visit(api.ipc_event_open, "cuIpcOpenEventHandle");
  visit(api.module_load, "cuModuleLoadData");
  visit(api.module_unload, "cuModuleUnload");
  visit(api.module_function, "cuModuleGetFunction");
  visit(api.launch, "cuLaunchKernel");
}

Result<CudaApi> open(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(unavailable(dlerror()));
  CudaApi api;
  const char* absent = nullptr;
  for_each_function(api, [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && absent == nullptr) absent = name;
  });
  if (absent != nullptr) {
    dlclose(handle);
    return fail(unavailable(fmt::format("{} has no function {}", path, absent)));
  }
  api.path = path;
  if (auto started = check_cuda(api, api.init(0), "starting the driver"); !started) return fail(std::move(started).error());
  return api;
}

Result<CudaApi> open_first() {
  std::vector<std::string> paths{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  if (const char* named = std::getenv("SHOAL_CUDA_LIBRARY"); named != nullptr && *named != 0) paths.insert(paths.begin(), named);
  std::string attempts;
  for (const auto& path : paths) {
    auto api = open(path);
    if (api) return api;
    attempts += (attempts.empty() ? "" : "; ") + api.error().message();
  }
  return fail(unavailable("CUDA's driver could not be loaded: " + attempts)
                  .with_reason("NoCuda")
                  .with_hint("install the driver of the GPU, or train on the CPU; SHOAL_CUDA_LIBRARY names a libcuda.so.1 elsewhere"));
}

}  // namespace

Result<const CudaApi*> CudaApi::load() {
  static const Result<CudaApi> api = open_first();
  if (!api) return fail(api.error());
  return &*api;
}

}  // namespace shoal::runtime
