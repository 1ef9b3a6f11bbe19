#include "scheduler/node/metrics/gpus.h"

#include <optional>

#include "runtime/core/library.h"

namespace shoal::scheduler {

namespace {

// The part of NVML's interface that is used here, declared anew, since nvml.h is not packaged. Its functions return 0 for success. The
// names carry the version of their arguments.
struct Nvml {
  using Device = struct nvmlDevice_st*;
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Utilization {
    unsigned int gpu, memory;  // in percent
  };
  int (*init)();
  int (*count)(unsigned int*);
  int (*by_index)(unsigned int, Device*);
  int (*memory)(Device, Memory*);
  int (*utilization)(Device, Utilization*);
  int (*uuid)(Device, char*, unsigned int);
  int (*name)(Device, char*, unsigned int);

  static std::optional<Nvml> load() {
    Nvml out{};
    const auto loaded = load_functions("libnvidia-ml.so.1", [&](const auto& find) {
      find(out.init, "nvmlInit_v2");
      find(out.count, "nvmlDeviceGetCount_v2");
      find(out.by_index, "nvmlDeviceGetHandleByIndex_v2");
      find(out.memory, "nvmlDeviceGetMemoryInfo");
      find(out.utilization, "nvmlDeviceGetUtilizationRates");
      find(out.uuid, "nvmlDeviceGetUUID");
      find(out.name, "nvmlDeviceGetName");
    });
    if (!loaded || out.init() != 0) return std::nullopt;
    return out;
  }
};

}  // namespace

std::vector<Gpu> read_gpus() {
  static const std::optional<Nvml> nvml = Nvml::load();
  std::vector<Gpu> out;
  unsigned int count = 0;
  if (!nvml || nvml->count(&count) != 0) return out;
  for (unsigned int i = 0; i < count; ++i) {
    Nvml::Device device{};
    Nvml::Memory memory{};
    if (nvml->by_index(i, &device) != 0 || nvml->memory(device, &memory) != 0) continue;
    char uuid[96] = "", name[96] = "";
    Nvml::Utilization busy{};  // stays 0 for a part of a GPU (MIG), which has no such figure
    if (nvml->utilization(device, &busy) != 0) busy = {};
    (void)nvml->uuid(device, uuid, sizeof uuid);
    (void)nvml->name(device, name, sizeof name);
    out.push_back({i, uuid, name, memory.used, memory.total, busy.gpu / 100.0});
  }
  return out;
}

}  // namespace shoal::scheduler
