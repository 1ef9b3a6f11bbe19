// This machine's GPUs, through NVIDIA's management library where there is one.
#pragma once

#include <vector>

#include "scheduler/node/metrics/machine.h"

namespace shoal::scheduler {

// The GPUs of this machine, by index. Empty if there is no driver or no library (libnvidia-ml.so.1). The first call loads the library for
// good. One thread at a time; may block as long as the driver does.
std::vector<Gpu> read_gpus();

}  // namespace shoal::scheduler
