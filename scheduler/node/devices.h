// Assigns a node's GPUs to its workers. The head counts amounts; this class chooses the devices.
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
  // `ids`: names as in CUDA_VISIBLE_DEVICES.
  explicit Devices(std::vector<std::string> ids);
  bool empty() const { return ids_.empty(); }

  // Assigns a device for each whole unit (actors::Resources::kUnit), and one to share for the rest: the fullest that has room. If shares
  // leave none with room, it is the one with most: the head counts devices, not pieces of them.
  std::vector<std::string> take(WorkerId worker, std::int64_t units);
  void give_back(WorkerId worker);

 private:
  const std::vector<std::string> ids_;
  std::vector<std::int64_t> free_;                                                  // free units by device
  std::map<WorkerId, std::vector<std::pair<std::size_t, std::int64_t>>> holdings_;  // (device, units)
};

// The devices that CUDA_VISIBLE_DEVICES names; none if it is not set (null), as all are visible then.
std::optional<std::vector<std::string>> visible_devices(const char* visible);
// The number of GPUs in /dev (`folder`), limited by CUDA_VISIBLE_DEVICES.
std::size_t count_devices(const std::string& folder, const char* visible);
// Names for `count` GPUs. Returns InvalidArgument/DevicesHidden if CUDA_VISIBLE_DEVICES names fewer: hidden ones must not be used.
Result<std::vector<std::string>> device_ids(std::int64_t count, const char* visible);

// "A100" from "NVIDIA A100-SXM4-80GB", as users ask for it; "" if the name has no such word.
std::string accelerator_type(const std::string& model);

}  // namespace shoal::scheduler
