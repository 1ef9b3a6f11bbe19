// The fake as libnvidia-ml.so.1, whose devices the variable SHOAL_FAKE_NVML describes (FakeNvml::read).
#include <cstdlib>

#include "runtime/device/nvml/fake/fake_nvml.h"

namespace shoal {
namespace {

const runtime::NvmlApi& api() { return runtime::FakeNvml::api(); }

// The state that exists once the library is loaded.
struct Machine {
  Machine() {
    const char* const text = std::getenv("SHOAL_FAKE_NVML");
    runtime::FakeNvml::machine().read(text == nullptr ? "" : text);
  }
};
const Machine machine;

}  // namespace
}  // namespace shoal

using Symbol = void (*)();

// The dynamic linker asks `resolve` for the address of `symbol`.
#define EXPORT(symbol, function)                                                               \
  extern "C" {                                                                                 \
  static Symbol resolve_##symbol() { return reinterpret_cast<Symbol>(shoal::api().function); } \
  void symbol() __attribute__((ifunc("resolve_" #symbol), visibility("default")));             \
  }

EXPORT(nvmlInit_v2, init)
EXPORT(nvmlErrorString, error_string)
EXPORT(nvmlDeviceGetCount_v2, count)
EXPORT(nvmlDeviceGetHandleByIndex_v2, by_index)
EXPORT(nvmlDeviceGetName, name)
EXPORT(nvmlDeviceGetUUID, uuid)
EXPORT(nvmlDeviceGetMemoryInfo, memory)
EXPORT(nvmlDeviceGetUtilizationRates, utilization)
EXPORT(nvmlDeviceGetComputeMode, compute_mode)
EXPORT(nvmlDeviceGetTotalEccErrors, ecc_errors)
EXPORT(nvmlDeviceGetRetiredPagesPendingStatus, retirement_pending)
EXPORT(nvmlDeviceGetComputeRunningProcesses_v3, processes)
EXPORT(nvmlDeviceGetRemappedRows, remapped_rows)
EXPORT(nvmlDeviceGetMigMode, mig_mode)
EXPORT(nvmlDeviceGetMaxMigDeviceCount, max_slices)
EXPORT(nvmlDeviceGetMigDeviceHandleByIndex, slice)
