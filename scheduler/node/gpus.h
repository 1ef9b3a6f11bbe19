// This machine's GPUs, through NVIDIA's management library where there is one.
#pragma once

#include <vector>

#include "scheduler/node/machine.h"

namespace shoal::scheduler {

// By index. Empty without the library (libnvidia-ml.so.1), which is loaded by the first call and stays, or without a driver. One thread at
// a time; waits for the driver.
std::vector<Gpu> look_at_gpus();

}  // namespace shoal::scheduler
