#include <dlfcn.h>

#include <cstdlib>
#include <vector>

#include "runtime/core/library.h"
#include "runtime/device/cuda_api.h"

namespace shoal::runtime {

namespace {

// Functions that an older driver lacks. The library is loaded already, and stays so.
void find_optional(CudaApi& api) {
  void* const library = dlopen(api.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return;
  api.stream_write_value = reinterpret_cast<decltype(api.stream_write_value)>(dlsym(library, "cuStreamWriteValue64_v2"));
  api.stream_wait_value = reinterpret_cast<decltype(api.stream_wait_value)>(dlsym(library, "cuStreamWaitValue64_v2"));
  dlclose(library);  // returns the reference that this dlopen took
}

Result<CudaApi> open(const std::string& path) {
  CudaApi api;
  // A suffix such as _v2 is the version of the function whose arguments the table has.
  SHOAL_OK(load_functions(path, [&](const auto& find) {
    find(api.init, "cuInit");
    find(api.driver_version, "cuDriverGetVersion");
    find(api.error_name, "cuGetErrorName");
    find(api.error_string, "cuGetErrorString");
    find(api.device_count, "cuDeviceGetCount");
    find(api.device_get, "cuDeviceGet");
    find(api.device_name, "cuDeviceGetName");
    find(api.device_uuid, "cuDeviceGetUuid_v2");
    find(api.device_attribute, "cuDeviceGetAttribute");
    find(api.context_retain, "cuDevicePrimaryCtxRetain");
    find(api.context_release, "cuDevicePrimaryCtxRelease_v2");
    find(api.context_push, "cuCtxPushCurrent_v2");
    find(api.context_pop, "cuCtxPopCurrent_v2");
    find(api.context_device, "cuCtxGetDevice");
    find(api.stream_create, "cuStreamCreate");
    find(api.stream_destroy, "cuStreamDestroy_v2");
    find(api.stream_synchronize, "cuStreamSynchronize");
    find(api.stream_wait_event, "cuStreamWaitEvent");
    find(api.event_create, "cuEventCreate");
    find(api.event_destroy, "cuEventDestroy_v2");
    find(api.event_record, "cuEventRecord");
    find(api.event_query, "cuEventQuery");
    find(api.event_elapsed, "cuEventElapsedTime");
    find(api.memory_allocate, "cuMemAlloc_v2");
    find(api.memory_free, "cuMemFree_v2");
    find(api.memory_info, "cuMemGetInfo_v2");
    find(api.copy, "cuMemcpyAsync");
    find(api.set, "cuMemsetD8Async");
    find(api.pointer_attribute, "cuPointerGetAttribute");
    find(api.ipc_memory_handle, "cuIpcGetMemHandle");
    find(api.ipc_memory_open, "cuIpcOpenMemHandle_v2");
    find(api.ipc_memory_close, "cuIpcCloseMemHandle");
    find(api.host_register, "cuMemHostRegister_v2");
    find(api.host_unregister, "cuMemHostUnregister");
    find(api.host_address, "cuMemHostGetDevicePointer_v2");
    find(api.ipc_event_handle, "cuIpcGetEventHandle");
    find(api.ipc_event_open, "cuIpcOpenEventHandle");
    find(api.module_load, "cuModuleLoadData");
    find(api.module_unload, "cuModuleUnload");
    find(api.module_function, "cuModuleGetFunction");
    find(api.launch, "cuLaunchKernel");
  }));
  api.path = path;
  find_optional(api);
  SHOAL_OK(check_cuda(api, api.init(0), "starting the driver"));
  return api;
}

Result<CudaApi> open_any() {
  std::vector<std::string> paths{"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};
  if (const char* named = std::getenv("SHOAL_CUDA_LIBRARY"); named != nullptr && *named != 0) paths.insert(paths.begin(), named);
  auto api = open_first("CUDA's driver", paths, &open);
  if (api) return api;
  return fail(std::move(api).error().with_reason("NoCuda").with_hint(
      "install the driver of the GPU, or train on the CPU; SHOAL_CUDA_LIBRARY names a libcuda.so.1 elsewhere"));
}

}  // namespace

Result<const CudaApi*> CudaApi::load() {
  static const Result<CudaApi> api = open_any();
  if (!api) return fail(api.error());
  return &*api;
}

}  // namespace shoal::runtime
