#include "runtime/device/nvml/device_state.h"

#include <algorithm>

#include <fmt/format.h>

namespace shoal::runtime {

namespace {

using Fault = DeviceState::Fault;

constexpr unsigned kMostProcesses = 1024, kMostSlices = 64;
constexpr unsigned long long kUnknownBytes = ~0ULL;

std::string text_of(NvmlStatus (*read)(NvmlHandle, char*, unsigned), NvmlHandle device) {
  char text[96] = "";
  return read(device, text, sizeof text - 1) == nvml::kSuccess ? text : "";
}

std::string reset_of(unsigned index) { return fmt::format("end the processes that use it, then nvidia-smi --gpu-reset -i {}", index); }

// The fault that a failing call shows.
Fault fault_of(const NvmlApi& api, NvmlStatus status, unsigned index) {
  if (status == nvml::kLost)
    return {"lost", "the driver has lost the device",
            "dmesg | grep -i xid names the event; restart the machine, and check power and seating"};
  if (status == nvml::kResetRequired) return {"reset", "the device needs a reset", reset_of(index)};
  if (status == nvml::kNoPermission)
    return {"permission", "this user may not use the device", fmt::format("allow it /dev/nvidia{} (in a container: --gpus)", index)};
  return {"unreadable", fmt::format("NVML cannot read the device: {}", api.error_string(status)),
          "nvidia-smi shows the driver; dmesg | grep -i -e xid -e nvrm shows what it logs"};
}

void read_memory_faults(const NvmlApi& api, NvmlHandle handle, DeviceState& out) {
  unsigned long long errors = 0;
  if (api.ecc_errors(handle, nvml::kUncorrected, nvml::kSinceDriver, &errors) == nvml::kSuccess && errors > 0) {
    out.faults.push_back({"ecc", fmt::format("{} uncorrected ECC errors in its memory since the driver was loaded", errors),
                          reset_of(out.index) + "; replace it if they come back"});
  }
  int pending = 0;
  if (api.retirement_pending(handle, &pending) == nvml::kSuccess && pending != 0)
    out.faults.push_back({"retirement", "pages of its memory wait to be retired", reset_of(out.index)});
  unsigned correctable = 0, uncorrectable = 0, waiting = 0, failed = 0;
  if (api.remapped_rows == nullptr || api.remapped_rows(handle, &correctable, &uncorrectable, &waiting, &failed) != nvml::kSuccess) return;
  if (failed != 0) out.faults.push_back({"memory", "rows of its memory could not be replaced by spare ones", "replace the device"});
  if (waiting != 0) out.faults.push_back({"remapping", "rows of its memory wait to be replaced by spare ones", reset_of(out.index)});
}

void read_holders(const NvmlApi& api, NvmlHandle handle, std::vector<DeviceState::Holder>& out) {
  if (api.processes == nullptr) return;
  std::vector<NvmlProcess> found(16);
  while (true) {
    auto count = static_cast<unsigned>(found.size());
    const auto status = api.processes(handle, &count, found.data());
    if (status == nvml::kInsufficientSize && found.size() < kMostProcesses) {
      found.resize(2 * found.size());
      continue;
    }
    found.resize(status == nvml::kSuccess ? std::min<std::size_t>(count, found.size()) : 0);
    break;
  }
  for (const auto& p : found) out.push_back({p.pid, p.bytes == kUnknownBytes ? 0 : p.bytes});
}

void read_slices(const NvmlApi& api, NvmlHandle handle, DeviceState& out) {
  unsigned current = 0, pending = 0, most = 0;
  if (api.mig_mode == nullptr || api.mig_mode(handle, &current, &pending) != nvml::kSuccess) return;
  out.mig = current != 0;
  if (current != pending) {
    out.faults.push_back({"mig", fmt::format("MIG will be {} after a reset", pending != 0 ? "on" : "off"), reset_of(out.index)});
  }
  if (!out.mig || api.max_slices == nullptr || api.slice == nullptr || api.max_slices(handle, &most) != nvml::kSuccess) return;
  for (unsigned i = 0; i < std::min(most, kMostSlices); ++i) {
    NvmlHandle slice = nullptr;
    if (api.slice(handle, i, &slice) != nvml::kSuccess) continue;  // no slice at this place: large slices leave gaps
    NvmlMemory memory{};
    if (api.memory(slice, &memory) != nvml::kSuccess) memory = {};
    out.slices.push_back({text_of(api.uuid, slice), text_of(api.name, slice), memory.used, memory.total});
    read_holders(api, slice, out.holders);
  }
  if (out.slices.empty()) {
    out.faults.push_back(
        {"mig", "MIG is on, and the device has no slice, so CUDA opens nothing on it",
         fmt::format("make slices (nvidia-smi mig -i {0} -cgi PROFILES -C), or turn MIG off (nvidia-smi -i {0} -mig 0)", out.index)});
  }
}

DeviceState read_device(const NvmlApi& api, unsigned index) {
  DeviceState out;
  out.index = index;
  NvmlHandle handle = nullptr;
  if (const auto status = api.by_index(index, &handle); status != nvml::kSuccess) {
    out.faults.push_back(fault_of(api, status, index));
    return out;
  }
  out.uuid = text_of(api.uuid, handle);
  out.name = text_of(api.name, handle);
  NvmlMemory memory{};
  if (const auto status = api.memory(handle, &memory); status != nvml::kSuccess) {
    out.faults.push_back(fault_of(api, status, index));
    return out;
  }
  out.memory_used = memory.used;
  out.memory_total = memory.total;
  NvmlUtilization use{};  // a divided device has no such figure
  if (api.utilization(handle, &use) == nvml::kSuccess) out.busy = use.device / 100.0;
  read_slices(api, handle, out);
  if (!out.mig) read_holders(api, handle, out.holders);
  read_memory_faults(api, handle, out);
  int mode = 0;
  if (api.compute_mode(handle, &mode) == nvml::kSuccess && mode == nvml::kModeProhibited)
    out.faults.push_back({"prohibited", "its compute mode lets no process use it", fmt::format("nvidia-smi -i {} -c DEFAULT", index)});
  return out;
}

}  // namespace

Result<std::vector<DeviceState>> read_devices(const NvmlApi& api) {
  unsigned count = 0;
  if (const auto status = api.count(&count); status != nvml::kSuccess) return fail(from_nvml(api, status, "counting the GPUs"));
  std::vector<DeviceState> out;
  for (unsigned i = 0; i < count; ++i) out.push_back(read_device(api, i));
  return out;
}

}  // namespace shoal::runtime
