#include "runtime/sim/sim_world.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/sim/sim_fixture.h"

namespace shoal::runtime {
namespace {

using SimWorldDeathTest = testing::Test;
TEST(SimWorldDeathTest, EventsWithoutEndAreABug) {
  EXPECT_DEATH(
      {
        SimWorld world({.max_events_at_once = 1000});
        std::function<void()> again = [&] { world.loop().post(again); };
        again();
        world.run_for(1s);
      },
      "no time passes");
}

// Three hosts send, disconnect, partition and crash, driven by the seed. Checks the safety of every connection, and the trace.
struct Outcome {
  std::uint64_t hash = 0, draw = 0, events = 0;
  bool operator==(const Outcome&) const = default;
};

Outcome storm(std::uint64_t seed) {
  SimNetworkOptions options;
  options.delays.slow_per_mille = 20;
  options.give_up = 3s;
  SimWorld world({seed, options});
  Random& random = world.random();
  const std::vector<std::string> hosts = {"a", "b", "c"};
  std::map<std::string, std::unique_ptr<Process>> at;
  std::map<std::string, Endpoint> listens;
  const auto boot = [&](const std::string& host) {
    at[host] = std::make_unique<Process>(world.fabric().attach(host, 1));
    listens[host] = at[host]->listen();
  };
  for (const auto& host : hosts) boot(host);
  std::uint64_t n = 0;
  for (int i = 0; i < 200; ++i) {
    const std::string& x = hosts[random.below(3)];
    const std::string& y = hosts[random.below(3)];
    switch (random.below(8)) {
      case 0:
        at[x]->connect(listens[y], 1s);
        break;
      case 1:
        if (x != y) world.fabric().cut(x, y);
        break;
      case 2:
        world.fabric().heal();
        break;
      case 3:
        world.fabric().disconnect_any();
        break;
      case 4:
        if (!happens(random, 100)) break;
        world.fabric().crash(x);
        at[x].reset();
        boot(x);
        break;
      default:
        if (at[x]->called) at[x]->called->send(n, 3);
        for (auto& e : at[x]->accepted) e->send(n, 3);
        n += 3;
    }
    world.run_for(between(random, 0s, 500ms));
    for (const auto& [host, p] : at) {
      for (const auto& e : p->accepted) EXPECT_TRUE(std::is_sorted(e->received.begin(), e->received.end()));
    }
  }
  world.fabric().heal();
  at.clear();
  world.run_for(1h);
  EXPECT_EQ(world.fabric().num_links(), 0u);
  EXPECT_EQ(world.clock().num_timers(), 0u);
  return {world.trace_hash(), world.last_draw(), world.num_events()};
}

TEST(SimWorld, ASeedGivesTheSameRunAgainAndAnotherSeedAnother) {
  std::map<std::uint64_t, std::uint64_t> seen;
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    const Outcome first = storm(seed);
    EXPECT_GT(first.events, 100u);
    EXPECT_EQ(first, storm(seed));
    EXPECT_TRUE(seen.emplace(first.hash, seed).second);
  }
}

}  // namespace
}  // namespace shoal::runtime
