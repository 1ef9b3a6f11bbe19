// This machine's GPUs, through NVIDIA's management library where there is one.
#pragma once

#include <vector>

#include "scheduler/node/machine.h"

namespace shoal::scheduler {

// GPUs by index. Empty without a driver, or without the library (libnvidia-ml.so.1), which the first call loads for good. One thread at a
// time; blocks on the driver.
std::vector<Gpu> look_at_gpus();

}  // namespace shoal::scheduler
