#include "runtime/loop/random.h"

#include <sys/random.h>

#include "runtime/core/check.h"

namespace shoal::runtime {
namespace {

class RealRandom final : public Random {
 public:
  std::uint64_t next() override {
    std::uint64_t value = 0;
    SHOAL_CHECK(getrandom(&value, sizeof value, 0) == sizeof value, "the kernel has no random numbers");
    return value;
  }
};

}  // namespace

std::unique_ptr<Random> make_real_random() { return std::make_unique<RealRandom>(); }

}  // namespace shoal::runtime
