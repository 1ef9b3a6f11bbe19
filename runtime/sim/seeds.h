// Which seeds a test of the simulated world runs.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::runtime {

// 1 to `count`, or as many as the environment's SHOAL_SEEDS says, or the only one that SHOAL_SEED names: how a failure is replayed.
std::vector<std::uint64_t> seeds(std::uint64_t count);

}  // namespace shoal::runtime
