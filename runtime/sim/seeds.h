// Seeds for tests in the simulated world.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::runtime {

// Returns 1 to `count`. The environment overrides it: SHOAL_SEEDS sets the count, SHOAL_SEED a single seed, to replay a failure.
std::vector<std::uint64_t> seeds(std::uint64_t count);

}  // namespace shoal::runtime
