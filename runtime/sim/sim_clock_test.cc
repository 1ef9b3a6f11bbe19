#include "runtime/sim/sim_clock.h"

#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "runtime/sim/sim_world.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

TEST(SimClock, TimersFireInTheOrderOfTheirTimesThenOfTheirMaking) {
  SimWorld world({});
  std::string fired;
  const Timer late = world.clock().after(2s, [&] { fired += "late "; });
  const Timer first = world.clock().after(1s, [&] { fired += "first "; });
  const Timer second = world.clock().after(1s, [&] { fired += "second "; });
  const Timer past = world.clock().after(-1s, [&] { fired += "past "; });
  const Timer never = world.clock().after(Duration::max(), [&] { fired += "never "; });
  world.run_for(1h);
  EXPECT_EQ(fired, "past first second late ");
  EXPECT_EQ(world.clock().now(), TimePoint(1h));
}

TEST(SimHostClock, LeapsStandsStillAndGoesOnApartFromTheOthers) {
  SimWorld world({});
  auto& clock = world.clock_of("a");
  auto& other = world.clock_of("b");
  ASSERT_EQ(&clock, &world.clock_of("a"));
  std::string fired;
  const Timer second = clock.after(2s, [&] { fired += "2 "; });
  const Timer first = clock.after(1s, [&] { fired += "1 "; });
  const Timer tenth = clock.after(10s, [&] { fired += "10 "; });
  const Timer never = clock.after(Duration::max(), [&] { fired += "never "; });
  const Timer others = other.after(3s, [&] { fired += "other "; });
  clock.leap(5s);
  world.run_for(0s);
  EXPECT_EQ(fired, "1 2 ");  // in order, without delay
  EXPECT_EQ(clock.now(), TimePoint(5s));
  clock.stand_still();
  EXPECT_TRUE(clock.stands());
  const Timer meanwhile = clock.after(0s, [&] { fired += "meanwhile "; });
  world.run_for(1h);
  EXPECT_EQ(fired, "1 2 other ");
  EXPECT_EQ(clock.now(), TimePoint(5s));
  clock.go_on();
  world.run_for(4s);
  EXPECT_EQ(fired, "1 2 other meanwhile ");
  world.run_for(1s);
  EXPECT_EQ(fired, "1 2 other meanwhile 10 ");
  EXPECT_EQ(clock.now(), TimePoint(10s));
  EXPECT_EQ(world.clock().now(), TimePoint(1h + 5s));
}

TEST(SimHostClock, TheWallClockGoesWhereItIsSet) {
  SimWorld world({});
  auto& clock = world.clock_of("a");
  const auto before = clock.unix_millis();
  clock.set_wall_ahead(-1h);
  EXPECT_EQ(clock.unix_millis(), before - 3'600'000);
  EXPECT_EQ(world.clock_of("b").unix_millis(), before);
  EXPECT_EQ(clock.now(), world.clock().now());
  world.run_for(1s);
  EXPECT_EQ(clock.unix_millis(), before - 3'599'000);
}

TEST(SimHostClock, ADestroyedTimerNeverFiresAndLeavesNothing) {
  SimWorld world({});
  auto& clock = world.clock_of("a");
  bool fired = false;
  Timer self, later;
  {
    const Timer dropped = clock.after(1s, [&] { fired = true; });
  }
  self = clock.after(1s, [&] {
    later = {};
    self = {};  // destroyed during its callback
  });
  later = clock.after(1s, [&] { fired = true; });
  world.run_for(1min);
  EXPECT_FALSE(fired);
  EXPECT_EQ(world.clock().num_timers(), 0u);
}

TEST(SimClock, ADestroyedTimerNeverFiresAndLeavesNothing) {
  SimWorld world({});
  bool fired = false;
  Timer other;
  Timer self;
  {
    const Timer dropped = world.clock().after(1s, [&] { fired = true; });
  }
  self = world.clock().after(1s, [&] {
    other = {};
    self = {};  // destroyed during its callback
  });
  other = world.clock().after(1s, [&] { fired = true; });
  world.run_for(1min);
  EXPECT_FALSE(fired);
  EXPECT_EQ(world.clock().num_timers(), 0u);
}

TEST(SimClock, TimePassesOnlyWhenNothingIsReady) {
  SimWorld world({});
  int left = 1000;
  std::function<void()> again = [&] {
    EXPECT_EQ(world.clock().now(), TimePoint(0s));
    if (--left > 0) world.loop().post(again);
  };
  world.loop().post(again);
  const Timer timer = world.clock().after(1us, [&] { EXPECT_EQ(left, 0); });
  world.run_for(1s);
  EXPECT_EQ(left, 0);
}

}  // namespace
}  // namespace shoal::runtime
