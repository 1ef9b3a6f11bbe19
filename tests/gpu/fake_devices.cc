// A library with the symbols of the CUDA driver and of NCCL, behind which are the strict fakes, and the kernels on the host. Tests of
// Python load it by SHOAL_CUDA_LIBRARY and SHOAL_NCCL_LIBRARY. Memory of the process counts as memory of whichever device is asked.
#include <string>

#include "fsdp/kernels/cuda/on_host.h"
#include "runtime/device/device.h"
#include "runtime/device/kernels/on_host.h"
#include "runtime/transport/nccl/fake/fake_nccl.h"

namespace shoal {
namespace {

const runtime::CudaApi& cuda_api() { return runtime::FakeCuda::machine().api(); }
const runtime::NcclApi& nccl_api() { return runtime::FakeNccl::machine().api(); }

// The fakes need no start. Like the driver, the library refuses to count its devices before.
bool started = false;
runtime::CudaStatus cu_init(unsigned flags) {
  started = true;
  return cuda_api().init(flags);
}
runtime::CudaStatus cu_device_count(int* count) { return started ? cuda_api().device_count(count) : runtime::cuda::kNotInitialized; }

// The state that exists once the library is loaded.
struct Machine {
  Machine() {
    runtime::add_device_kernels();
    fsdp::add_optim_kernels();
  }
  const runtime::FakeCuda::HostMemoryCounts host_memory_counts;
};
const Machine machine;

}  // namespace
}  // namespace shoal

using Symbol = void (*)();

// The dynamic linker asks `resolve` for the address of `symbol`.
#define EXPORT(symbol, function)                                                         \
  extern "C" {                                                                           \
  static Symbol resolve_##symbol() { return reinterpret_cast<Symbol>(shoal::function); } \
  void symbol() __attribute__((ifunc("resolve_" #symbol), visibility("default")));       \
  }

EXPORT(cuInit, cu_init)
EXPORT(cuDriverGetVersion, cuda_api().driver_version)
EXPORT(cuGetErrorName, cuda_api().error_name)
EXPORT(cuGetErrorString, cuda_api().error_string)
EXPORT(cuDeviceGetCount, cu_device_count)
EXPORT(cuDeviceGet, cuda_api().device_get)
EXPORT(cuDeviceGetName, cuda_api().device_name)
EXPORT(cuDeviceGetUuid_v2, cuda_api().device_uuid)
EXPORT(cuDeviceGetAttribute, cuda_api().device_attribute)
EXPORT(cuDevicePrimaryCtxRetain, cuda_api().context_retain)
EXPORT(cuDevicePrimaryCtxRelease_v2, cuda_api().context_release)
EXPORT(cuCtxPushCurrent_v2, cuda_api().context_push)
EXPORT(cuCtxPopCurrent_v2, cuda_api().context_pop)
EXPORT(cuCtxGetDevice, cuda_api().context_device)
EXPORT(cuStreamCreate, cuda_api().stream_create)
EXPORT(cuStreamDestroy_v2, cuda_api().stream_destroy)
EXPORT(cuStreamSynchronize, cuda_api().stream_synchronize)
EXPORT(cuStreamWaitEvent, cuda_api().stream_wait_event)
EXPORT(cuStreamWaitValue64_v2, cuda_api().stream_wait_value)
EXPORT(cuStreamWriteValue64_v2, cuda_api().stream_write_value)
EXPORT(cuMemHostRegister_v2, cuda_api().host_register)
EXPORT(cuMemHostUnregister, cuda_api().host_unregister)
EXPORT(cuMemHostGetDevicePointer_v2, cuda_api().host_address)
EXPORT(cuEventCreate, cuda_api().event_create)
EXPORT(cuEventDestroy_v2, cuda_api().event_destroy)
EXPORT(cuEventRecord, cuda_api().event_record)
EXPORT(cuEventQuery, cuda_api().event_query)
EXPORT(cuEventElapsedTime, cuda_api().event_elapsed)
EXPORT(cuMemAlloc_v2, cuda_api().memory_allocate)
EXPORT(cuMemFree_v2, cuda_api().memory_free)
EXPORT(cuMemGetInfo_v2, cuda_api().memory_info)
EXPORT(cuMemcpyAsync, cuda_api().copy)
EXPORT(cuMemsetD8Async, cuda_api().set)
EXPORT(cuPointerGetAttribute, cuda_api().pointer_attribute)
EXPORT(cuIpcGetMemHandle, cuda_api().ipc_memory_handle)
EXPORT(cuIpcOpenMemHandle_v2, cuda_api().ipc_memory_open)
EXPORT(cuIpcCloseMemHandle, cuda_api().ipc_memory_close)
EXPORT(cuIpcGetEventHandle, cuda_api().ipc_event_handle)
EXPORT(cuIpcOpenEventHandle, cuda_api().ipc_event_open)
EXPORT(cuModuleLoadData, cuda_api().module_load)
EXPORT(cuModuleUnload, cuda_api().module_unload)
EXPORT(cuModuleGetFunction, cuda_api().module_function)
EXPORT(cuLaunchKernel, cuda_api().launch)

EXPORT(ncclGetVersion, nccl_api().get_version)
EXPORT(ncclGetErrorString, nccl_api().error_string)
EXPORT(ncclGetLastError, nccl_api().last_error)
EXPORT(ncclGetUniqueId, nccl_api().get_unique_id)
EXPORT(ncclCommInitRankConfig, nccl_api().comm_init)
EXPORT(ncclCommGetAsyncError, nccl_api().comm_async_error)
EXPORT(ncclCommFinalize, nccl_api().comm_finalize)
EXPORT(ncclCommDestroy, nccl_api().comm_destroy)
EXPORT(ncclCommAbort, nccl_api().comm_abort)
EXPORT(ncclGroupStart, nccl_api().group_start)
EXPORT(ncclGroupEnd, nccl_api().group_end)
EXPORT(ncclAllGather, nccl_api().all_gather)
EXPORT(ncclReduceScatter, nccl_api().reduce_scatter)
EXPORT(ncclAllReduce, nccl_api().all_reduce)
EXPORT(ncclReduce, nccl_api().reduce)
EXPORT(ncclBroadcast, nccl_api().broadcast)
EXPORT(ncclSend, nccl_api().send)
EXPORT(ncclRecv, nccl_api().receive)

// Returns the misuses since the last call, one line each.
extern "C" __attribute__((visibility("default"))) const char* shoal_fake_violations() {
  static std::string text;
  text.clear();
  for (const auto& violation : shoal::runtime::FakeCuda::machine().take_violations()) text += violation + "\n";
  for (const auto& violation : shoal::runtime::FakeNccl::machine().take_violations()) text += violation + "\n";
  return text.c_str();
}

// Waits for the default stream of a device.
extern "C" __attribute__((visibility("default"))) void shoal_fake_synchronize(int device) {
  if (const auto opened = shoal::runtime::Device::open(shoal::cuda_api(), device)) (void)(*opened)->synchronize(nullptr);
}
