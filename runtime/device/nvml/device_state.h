// The state of this machine's GPUs, as NVML reports it: memory, use, MIG slices, and the faults that keep CUDA from a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device/nvml/nvml_api.h"

namespace shoal::runtime {

struct DeviceState {
  unsigned index = 0;  // the number that the driver gives the device
  std::string uuid, name;
  std::uint64_t memory_used = 0, memory_total = 0;  // bytes
  double busy = 0;                                  // share of time in the driver's last sample period, 0 to 1; 0 with MIG
  bool mig = false;                                 // divided: CUDA opens its slices only
  struct Slice {
    std::string uuid, name;
    std::uint64_t memory_used = 0, memory_total = 0;
  };
  std::vector<Slice> slices = {};
  // A process that has a CUDA context on the device or a slice. NVML reports its pid in the machine's outermost pid namespace.
  struct Holder {
    unsigned pid = 0;
    std::uint64_t bytes = 0;  // 0: not known
  };
  std::vector<Holder> holders = {};
  struct Fault {
    std::string kind;  // one word, for a metric's label
    std::string what, fix;
  };
  std::vector<Fault> faults = {};
};

// The GPUs of this machine, by index, whatever CUDA_VISIBLE_DEVICES hides. A device that the driver has lost has an entry. May block as
// long as the driver does.
Result<std::vector<DeviceState>> read_devices(const NvmlApi& api);

}  // namespace shoal::runtime
