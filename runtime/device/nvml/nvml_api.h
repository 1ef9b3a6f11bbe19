// The functions of NVIDIA's management library (NVML) that Shoal calls, with types of our own, so that the build needs no header of it.
// NVML reads a device without a CUDA context, also one on which CUDA fails. Tests put a fake behind the same table (fake/fake_nvml.h).
#pragma once

#include <string>

#include "runtime/core/result.h"

struct nvmlDevice_st;  // NVML's own name of what its handle points to

namespace shoal::runtime {

using NvmlStatus = int;
using NvmlHandle = nvmlDevice_st*;

struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned device, memory;  // in percent
};
struct NvmlProcess {
  unsigned pid;
  unsigned long long bytes;  // all ones: not known
  unsigned device_instance, compute_instance;
};

namespace nvml {
inline constexpr NvmlStatus kSuccess = 0, kUninitialized = 1, kInvalidArgument = 2, kNotSupported = 3, kNoPermission = 4, kNotFound = 6,
                            kInsufficientSize = 7, kLost = 15, kResetRequired = 16, kUnknown = 999;
inline constexpr int kUncorrected = 1;     // a kind of memory errors
inline constexpr int kSinceDriver = 0;     // counted since the driver was loaded
inline constexpr int kModeProhibited = 2;  // a compute mode
}  // namespace nvml

struct NvmlApi {
  // Loads NVML on the first call, and starts it. Unavailable/NoNvml with all attempts where there is none. SHOAL_NVML_LIBRARY names
  // another file.
  static Result<const NvmlApi*> load();

  std::string path;  // path of the loaded library

  NvmlStatus (*init)();
  const char* (*error_string)(NvmlStatus status);
  NvmlStatus (*count)(unsigned* count);
  NvmlStatus (*by_index)(unsigned index, NvmlHandle* device);
  NvmlStatus (*name)(NvmlHandle device, char* name, unsigned bytes);
  NvmlStatus (*uuid)(NvmlHandle device, char* uuid, unsigned bytes);
  NvmlStatus (*memory)(NvmlHandle device, NvmlMemory* memory);
  NvmlStatus (*utilization)(NvmlHandle device, NvmlUtilization* utilization);
  NvmlStatus (*compute_mode)(NvmlHandle device, int* mode);
  NvmlStatus (*ecc_errors)(NvmlHandle device, int kind, int counter, unsigned long long* count);
  NvmlStatus (*retirement_pending)(NvmlHandle device, int* pending);
  // Null in a library that is older than these.
  NvmlStatus (*processes)(NvmlHandle device, unsigned* count, NvmlProcess* processes) = nullptr;
  NvmlStatus (*remapped_rows)(NvmlHandle device, unsigned* correctable, unsigned* uncorrectable, unsigned* pending,
                              unsigned* failed) = nullptr;
  NvmlStatus (*mig_mode)(NvmlHandle device, unsigned* current, unsigned* pending) = nullptr;
  NvmlStatus (*max_slices)(NvmlHandle device, unsigned* count) = nullptr;
  NvmlStatus (*slice)(NvmlHandle device, unsigned index, NvmlHandle* slice) = nullptr;
};

// Converts statuses of NVML, everywhere in Shoal. `what`: the call in words.
Error from_nvml(const NvmlApi& api, NvmlStatus status, const std::string& what);

}  // namespace shoal::runtime
