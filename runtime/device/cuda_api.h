// The functions of the CUDA driver that the engine calls, with types of our own, so that the build needs no CUDA header. Tests put a fake
// behind the same table (fake/fake_cuda.h).
//
// The driver suffices: it is part of every machine with a GPU, and its primary context is the one that torch's CUDA runtime uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/core/result.h"

// The CUDA driver's own names of the structs behind its handles.
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

namespace shoal::runtime {

using CudaStatus = int;
using CudaContext = CUctx_st*;
using CudaStream = CUstream_st*;
using CudaEvent = CUevent_st*;
using CudaModule = CUmod_st*;
using CudaFunction = CUfunc_st*;
using CudaAddress = unsigned long long;

// A name by which another process of this host opens device memory or an event.
struct CudaIpcHandle {
  char bytes[64];
};
struct CudaUuid {
  char bytes[16];
};

namespace cuda {
inline constexpr CudaStatus kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kStubLibrary = 34, kUnavailable = 46,
                            kNoDevice = 100, kInvalidDevice = 101, kInvalidImage = 200, kInvalidContext = 201, kNoBinaryForGpu = 209,
                            kUnsupportedPtx = 222, kInvalidHandle = 400, kNotFound = 500, kNotReady = 600, kIllegalAddress = 700,
                            kLaunchFailed = 719, kNotSupported = 801, kDriverMismatch = 803;
inline constexpr unsigned kStreamNonBlocking = 1, kEventDisableTiming = 2, kEventInterprocess = 4, kIpcLazyPeerAccess = 1;
inline constexpr unsigned kHostPortable = 1, kHostMapped = 2, kWaitUntilAtLeast = 0, kWriteBehindBarrier = 0;
inline constexpr int kAttributeMultiprocessors = 16;              // attributes of a device
inline constexpr int kAttributeStreamMemory64 = 122;              // streams write and wait for words
inline constexpr int kPointerMemoryType = 2, kPointerDevice = 9;  // attributes of an address
inline constexpr unsigned kMemoryOfDevice = 2;
}  // namespace cuda

// Functions of the driver, by what they are about.
struct CudaDevices {
  CudaStatus (*init)(unsigned flags);
  CudaStatus (*driver_version)(int* version);  // 13000 for CUDA 13.0
  CudaStatus (*error_name)(CudaStatus status, const char** name);
  CudaStatus (*error_string)(CudaStatus status, const char** text);
  CudaStatus (*device_count)(int* count);
  CudaStatus (*device_get)(int* device, int ordinal);
  CudaStatus (*device_name)(char* name, int bytes, int device);
  CudaStatus (*device_uuid)(CudaUuid* uuid, int device);
  CudaStatus (*device_attribute)(int* value, int attribute, int device);
  CudaStatus (*context_retain)(CudaContext* context, int device);
  CudaStatus (*context_release)(int device);
  CudaStatus (*context_push)(CudaContext context);
  CudaStatus (*context_pop)(CudaContext* context);
  CudaStatus (*context_device)(int* device);  // the current context's
};

struct CudaStreams {
  CudaStatus (*stream_create)(CudaStream* stream, unsigned flags);
  CudaStatus (*stream_destroy)(CudaStream stream);
  CudaStatus (*stream_synchronize)(CudaStream stream);
  CudaStatus (*stream_wait_event)(CudaStream stream, CudaEvent event, unsigned flags);
  CudaStatus (*event_create)(CudaEvent* event, unsigned flags);
  CudaStatus (*event_destroy)(CudaEvent event);
  CudaStatus (*event_record)(CudaEvent event, CudaStream stream);
  CudaStatus (*event_query)(CudaEvent event);
  CudaStatus (*event_elapsed)(float* ms, CudaEvent from, CudaEvent to);
  CudaStatus (*ipc_event_handle)(CudaIpcHandle* handle, CudaEvent event);
  CudaStatus (*ipc_event_open)(CudaEvent* event, CudaIpcHandle handle);
  // Null in drivers before CUDA 11.7. A wait compares modulo 2^64, so counts may wrap.
  CudaStatus (*stream_write_value)(CudaStream stream, CudaAddress word, std::uint64_t value, unsigned flags) = nullptr;
  CudaStatus (*stream_wait_value)(CudaStream stream, CudaAddress word, std::uint64_t value, unsigned flags) = nullptr;
};

struct CudaMemory {
  CudaStatus (*memory_allocate)(CudaAddress* address, std::size_t bytes);
  CudaStatus (*memory_free)(CudaAddress address);
  CudaStatus (*memory_info)(std::size_t* free, std::size_t* total);
  CudaStatus (*copy)(CudaAddress to, CudaAddress from, std::size_t bytes, CudaStream stream);
  CudaStatus (*set)(CudaAddress to, unsigned char value, std::size_t bytes, CudaStream stream);
  CudaStatus (*pointer_attribute)(void* value, int attribute, CudaAddress address);
  CudaStatus (*ipc_memory_handle)(CudaIpcHandle* handle, CudaAddress address);
  CudaStatus (*ipc_memory_open)(CudaAddress* address, CudaIpcHandle handle, unsigned flags);
  CudaStatus (*ipc_memory_close)(CudaAddress address);
  CudaStatus (*host_register)(void* memory, std::size_t bytes, unsigned flags);
  CudaStatus (*host_unregister)(void* memory);
  CudaStatus (*host_address)(CudaAddress* address, void* memory, unsigned flags);
};

struct CudaKernels {
  CudaStatus (*module_load)(CudaModule* module, const void* image);
  CudaStatus (*module_unload)(CudaModule module);
  CudaStatus (*module_function)(CudaFunction* function, CudaModule module, const char* name);
  CudaStatus (*launch)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                       unsigned block_z, unsigned shared_bytes, CudaStream stream, void** arguments, void** extra);
};

struct CudaApi : CudaDevices, CudaStreams, CudaMemory, CudaKernels {
  // Loads the driver on the first call. Unavailable/NoCuda with all attempts where there is none. SHOAL_CUDA_LIBRARY names another file.
  static Result<const CudaApi*> load();

  std::string path;  // path of the loaded library
};

// Converts statuses of the driver, everywhere in Shoal. `what`: the call in words, "allocating 64 bytes on device 0".
Error from_cuda(const CudaApi& api, CudaStatus status, std::string_view what);
inline Result<void> check_cuda(const CudaApi& api, CudaStatus status, std::string_view what) {
  if (status == cuda::kSuccess) return {};
  return fail(from_cuda(api, status, what));
}

}  // namespace shoal::runtime
