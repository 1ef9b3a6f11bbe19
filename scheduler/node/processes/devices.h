// Assigns a node's GPUs to its workers. The head counts amounts of GPUs only; this class chooses the devices.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/id.h"
#include "runtime/core/result.h"

namespace shoal::scheduler {

class Devices {
 public:
  // `ids`: the devices' names, as CUDA_VISIBLE_DEVICES has them.
  explicit Devices(std::vector<std::string> ids);
  bool empty() const { return ids_.empty(); }

  // Assigns a device for each whole unit (actors::Resources::kUnit) and, for the rest, a device that workers share: the fullest one with
  // enough room. If none has enough, because the head counts devices and not parts of them, takes the one with most room.
  std::vector<std::string> take(WorkerId worker, std::int64_t units);
  void give_back(WorkerId worker);

 private:
  const std::vector<std::string> ids_;
  std::vector<std::int64_t> free_;                                                  // free units of each device, by its place in ids_
  std::map<WorkerId, std::vector<std::pair<std::size_t, std::int64_t>>> holdings_;  // by worker: (place in ids_, units)
};

// The devices that CUDA_VISIBLE_DEVICES lists. nullopt if it is not set (`visible` is null): then all are visible.
std::optional<std::vector<std::string>> visible_devices(const char* visible);
// The number of GPUs that `folder` (/dev) has, but at most as many as CUDA_VISIBLE_DEVICES lists. Each MIG slice in that list counts.
std::size_t count_devices(const std::string& folder, const char* visible);
// Names of `count` GPUs. Returns InvalidArgument/DevicesHidden if CUDA_VISIBLE_DEVICES lists fewer, since hidden ones must not be used.
Result<std::vector<std::string>> device_ids(std::int64_t count, const char* visible);

// The accelerator type that users write in requests: "A100" for the model "NVIDIA A100-SXM4-80GB"; "" if the model has no such word.
std::string accelerator_type(const std::string& model);

}  // namespace shoal::scheduler
