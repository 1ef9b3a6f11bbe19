// Which of a node's GPUs each of its workers may use. The head's books say how much there is, this says which ones.
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
  // As CUDA_VISIBLE_DEVICES names them.
  explicit Devices(std::vector<std::string> ids);
  bool empty() const { return ids_.empty(); }

  // Whole ones for each whole unit (actors::Resources::kUnit), one that it may share for the rest: the fullest that has room. Where
  // shares lie so that none has room, the one with the most: the head counts devices, not pieces of them.
  std::vector<std::string> take(WorkerId worker, std::int64_t units);
  void give_back(WorkerId worker);

 private:
  const std::vector<std::string> ids_;
  std::vector<std::int64_t> free_;                                                  // units, of each
  std::map<WorkerId, std::vector<std::pair<std::size_t, std::int64_t>>> holdings_;  // (device, units)
};

// What CUDA_VISIBLE_DEVICES names; none when it is not set (null): then all are visible.
std::optional<std::vector<std::string>> visible_devices(const char* visible);
// How many GPUs there are in /dev (`folder`), as far as CUDA_VISIBLE_DEVICES lets them be seen.
std::size_t count_devices(const std::string& folder, const char* visible);
// Names of so many of them. InvalidArgument/DevicesHidden when CUDA_VISIBLE_DEVICES names fewer: nobody takes what is another's.
Result<std::vector<std::string>> device_ids(std::int64_t count, const char* visible);

// "A100" of "NVIDIA A100-SXM4-80GB", as users ask for it; "" of a name that has no such word.
std::string accelerator_type(const std::string& model);

}  // namespace shoal::scheduler
