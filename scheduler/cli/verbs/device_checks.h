// The lines of `shoal doctor` for this machine's GPUs, one for each: figures, MIG slices, the processes that use it, and faults.
#pragma once

#include <functional>
#include <vector>

#include "runtime/device/nvml/device_state.h"
#include "scheduler/cli/verbs/check.h"

namespace shoal::scheduler::cli {

// A process as this host sees it.
struct DeviceUser {
  std::string name;    // empty: it is not visible here
  bool shoal = false;  // a worker of a cluster
};
DeviceUser find_device_user(unsigned pid);

// `visible`: CUDA_VISIBLE_DEVICES, or empty.
std::vector<Check> device_checks(const std::vector<runtime::DeviceState>& devices, const std::string& visible,
                                 const std::function<DeviceUser(unsigned pid)>& user);

}  // namespace shoal::scheduler::cli
