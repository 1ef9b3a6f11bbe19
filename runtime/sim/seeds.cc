#include "runtime/sim/seeds.h"

#include <cstdlib>
#include <numeric>

namespace shoal::runtime {

std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("SHOAL_SEED"); one != nullptr && *one != 0) return {std::strtoull(one, nullptr, 10)};
  if (const char* many = std::getenv("SHOAL_SEEDS"); many != nullptr && *many != 0) count = std::strtoull(many, nullptr, 10);
  std::vector<std::uint64_t> out(count);
  std::iota(out.begin(), out.end(), 1);
  return out;
}

}  // namespace shoal::runtime
