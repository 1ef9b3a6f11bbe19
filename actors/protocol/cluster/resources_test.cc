#include "actors/protocol/cluster/resources.h"

#include <cmath>

#include <gtest/gtest.h>

namespace shoal::actors {
namespace {

Resources of(const std::map<std::string, double>& amounts) { return Resources::from_amounts(amounts).value(); }

TEST(Resources, FractionsAddUpExactly) {
  Resources room = of({{"GPU", 1}});
  const Resources tenth = of({{"GPU", 0.1}});
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(tenth.fits_in(room));
    room -= tenth;
  }
  EXPECT_TRUE(room.empty());
  EXPECT_FALSE(tenth.fits_in(room));
}

TEST(Resources, AMissingAmountIsNamedWithTheAvailableOne) {
  const Resources want = of({{"CPU", 1}, {"GPU", 4}, {"memory", 8.0 * (1 << 30)}});
  const Resources has = of({{"CPU", 2}, {"memory", 1.0 * (1 << 30)}});
  EXPECT_EQ(want.missing_in(has), "GPU 4 (has 0), memory 8 GiB (has 1 GiB)");
  EXPECT_EQ(want.to_string(), "CPU 1, GPU 4, memory 8 GiB");
}

TEST(Resources, AmountsThatMakeNoSenseAreRefused) {
  for (const double bad : {-1.0, std::nan(""), 1.0 / 0.0, 1e300, 0.00001}) EXPECT_FALSE(Resources::from_amounts({{"CPU", bad}})) << bad;
  EXPECT_FALSE(Resources::from_amounts({{"", 1}}));
}

}  // namespace
}  // namespace shoal::actors
