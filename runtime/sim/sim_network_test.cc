#include "runtime/sim/sim_network.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/net/peer.h"
#include "runtime/sim/sim_fixture.h"

namespace shoal::runtime {
namespace {

TEST(SimNetwork, FramesArriveInOrderAndLater) {
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    SimNetworkOptions options;
    options.delays.slow_per_mille = 100;
    Pair p(seed, options);
    p.meet();
    const TimePoint before = p.world.clock().now();
    p.caller().send(0, 100);
    p.listener().send(500, 100);
    EXPECT_TRUE(p.listener().received.empty());  // no delivery inside send()
    ASSERT_TRUE(p.run_until([&] { return p.listener().received.size() == 100 && p.caller().received.size() == 100; }));
    EXPECT_TRUE(p.listener().received_exactly(0, 100));
    EXPECT_TRUE(p.caller().received_exactly(500, 100));
    EXPECT_GE(p.world.clock().now() - before, options.delays.least);
  }
}

TEST(SimNetwork, TheHelloVouchesForBothEnds) {
  Pair p(1);
  p.meet();
  EXPECT_EQ(p.listener().connection->identity().role, Role::kWorker);
  EXPECT_EQ(p.caller().connection->identity().version, VersionRange().newest);
  EXPECT_FALSE(p.caller().connection->identity().local);
  EXPECT_EQ(p.caller().connection->identity().pid, 0);
}

TEST(SimNetwork, AStrangerIsRefused) {
  Pair p(1);
  SeededRandom other(99);
  Process stranger(p.world.fabric().attach("c", 33, Token::random(other)));
  stranger.connect(p.b->listen());
  ASSERT_TRUE(p.run_until([&] { return stranger.error.has_value(); }));
  EXPECT_EQ(stranger.error->reason(), "TokenRefused");
  EXPECT_TRUE(p.b->accepted.empty());
}

TEST(SimNetwork, AMissingListenerAndAnAddressInUseAreNamed) {
  Pair p(1);
  p.a->connect(Endpoint::tcp("b", 1));
  ASSERT_TRUE(p.run_until([&] { return p.a->error.has_value(); }, 1s));
  EXPECT_EQ(p.a->error->code(), Code::kUnavailable);
  EXPECT_EQ(p.a->error->reason(), "Refused");
  EXPECT_NE(p.a->error->to_string().find("connecting to b:1"), std::string::npos);
  const Endpoint taken = p.b->listen();
  EXPECT_EQ(p.b->network->listen(taken, {}).error().reason(), "AddressInUse");
  p.b->listener.reset();
  EXPECT_TRUE(p.b->network->listen(taken, {}));
}

TEST(SimNetwork, UnixNamesBelongToTheirHostAndPassDescriptors) {
  Pair p(1);
  const Endpoint at = p.b->listen(Endpoint::unix_at("node"));
  auto peer_node = p.process("b", 33);
  peer_node->connect(at);
  p.a->connect(at);
  ASSERT_TRUE(p.run_until([&] { return peer_node->called && p.a->error; }));
  EXPECT_EQ(peer_node->called->connection->identity().pid, 22);
  ASSERT_EQ(p.b->accepted.size(), 1u);
  EXPECT_EQ(p.listener().connection->identity().pid, 33);
  Frame f = numbered(1);
  f.fds.emplace_back(eventfd(0, EFD_CLOEXEC));
  peer_node->called->connection->send(std::move(f), Flush::kNow);
  ASSERT_TRUE(p.run_until([&] { return !p.listener().fds.empty(); }));
}

TEST(SimNetwork, TheCallersHostSelectsTheEndpoint) {
  Pair p(1);
  const Endpoint at = p.b->listen({"node", "b", 0});
  EXPECT_TRUE(at.is_both());
  auto peer_node = p.process("b", 33);
  peer_node->connect(at);
  p.a->connect(at);
  ASSERT_TRUE(p.run_until([&] { return peer_node->called && p.a->called; }));
  EXPECT_TRUE(peer_node->called->connection->identity().local);
  EXPECT_FALSE(p.a->called->connection->identity().local);
}

TEST(SimNetwork, ACloseIsReportedAfterTheSentFrames) {
  Pair p(1);
  p.meet();
  p.caller().send(0, 10);
  p.caller().connection.reset();
  ASSERT_TRUE(p.run_until([&] { return p.listener().closed.has_value(); }));
  EXPECT_TRUE(p.listener().received_exactly(0, 10));
  EXPECT_EQ(p.listener().closed->reason(), "Disconnected");
  EXPECT_FALSE(p.caller().closed);  // no on_closed for its own close
}

TEST(SimNetwork, AHandlerMayCloseItsConnectionWhileAFrameArrives) {
  Pair p(1);
  p.meet();
  p.listener().on_received = [&] { p.listener().connection.reset(); };
  p.caller().send(0, 10);
  ASSERT_TRUE(p.run_until([&] { return p.caller().closed.has_value(); }));
  EXPECT_EQ(p.listener().received.size(), 1u);
}

TEST(SimNetwork, ADisconnectDeliversAPrefixAndIsReportedToBothSides) {
  bool some_lost = false, some_arrived = false;
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    Pair p(seed);
    p.meet();
    p.caller().send(0, 20);
    p.listener().send(0, 20);
    EXPECT_TRUE(p.world.fabric().disconnect_any());
    p.caller().send(20, 20);  // lost: sent before on_closed
    ASSERT_TRUE(p.run_until([&] { return p.caller().closed && p.listener().closed; }));
    for (const End* e : {&p.caller(), &p.listener()}) {
      EXPECT_TRUE(e->received_exactly(0, e->received.size()));
      EXPECT_LE(e->received.size(), 20u);
      some_lost |= e->received.size() < 20;
      some_arrived |= !e->received.empty();
    }
    EXPECT_FALSE(p.world.fabric().disconnect_any());
  }
  EXPECT_TRUE(some_lost && some_arrived);
}

TEST(SimNetwork, APartitionIsSilentAndItsHealDeliversEverythingOrDisconnects) {
  int whole = 0, broken = 0;
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    Pair p(seed);
    p.meet();
    p.caller().send(0, 5);
    p.world.fabric().partition("a", "b");  // with five frames under way
    p.caller().send(5, 5);
    p.listener().send(0, 5);
    p.world.run_for(1min);
    EXPECT_TRUE(p.listener().received.empty() && p.caller().received.empty());
    EXPECT_FALSE(p.caller().closed || p.listener().closed);
    p.world.fabric().heal("a", "b");
    p.caller().send(10, 5);
    p.world.run_for(10s);
    EXPECT_EQ(p.caller().closed.has_value(), p.listener().closed.has_value());
    EXPECT_TRUE(p.listener().received_exactly(0, p.listener().received.size()));
    EXPECT_TRUE(p.caller().received_exactly(0, p.caller().received.size()));
    if (p.caller().closed) {
      ++broken;
    } else {
      ++whole;
      EXPECT_TRUE(p.listener().received_exactly(0, 15));
      EXPECT_TRUE(p.caller().received_exactly(0, 5));
    }
  }
  EXPECT_TRUE(whole > 0 && broken > 0);
}

TEST(SimNetwork, ACloseInAPartitionIsReportedAfterTheHeal) {
  Pair p(1);
  p.meet();
  p.world.fabric().partition("a", "b");
  p.caller().send(0, 3);
  p.world.run_for(1s);
  p.listener().connection.reset();
  p.world.run_for(1min);
  EXPECT_FALSE(p.caller().closed);
  p.world.fabric().heal();
  p.world.run_for(2s);
  EXPECT_TRUE(p.caller().closed);
}

TEST(SimNetwork, AConnectionThatCarriedNothingSurvivesAPartition) {
  Pair p(1, {.broken_by_partition_per_mille = 1000});
  p.meet();
  p.world.fabric().partition("a", "b");
  p.world.run_for(1h);
  p.world.fabric().heal();
  p.caller().send(0, 1);
  p.world.run_for(1s);
  EXPECT_FALSE(p.caller().closed);
  EXPECT_TRUE(p.listener().received_exactly(0, 1));
}

TEST(SimNetwork, ACutInOneDirectionLetsTheOtherThrough) {
  Pair p(1, {.broken_by_partition_per_mille = 0});
  p.meet();
  p.world.fabric().cut("a", "b");
  p.caller().send(0, 3);
  p.listener().send(0, 3);
  p.world.run_for(1s);
  EXPECT_TRUE(p.caller().received_exactly(0, 3));
  EXPECT_TRUE(p.listener().received.empty());
  p.world.fabric().heal();
  p.world.run_for(1s);
  EXPECT_TRUE(p.listener().received_exactly(0, 3));
}

TEST(SimNetwork, ASendersTimeoutIsReportedToTheOtherSideAfterTheHeal) {
  Pair p(1, {.broken_by_partition_per_mille = 0, .give_up = 10s});
  p.meet();
  p.world.fabric().partition("a", "b");
  p.caller().send(0, 3);
  p.world.run_for(9s);
  EXPECT_FALSE(p.caller().closed);
  p.world.run_for(2s);
  ASSERT_TRUE(p.caller().closed);
  EXPECT_EQ(p.caller().closed->code(), Code::kDeadlineExceeded);
  p.world.run_for(1h);
  EXPECT_FALSE(p.listener().closed);
  p.world.fabric().heal();
  p.world.run_for(1s);
  EXPECT_TRUE(p.listener().closed);
  EXPECT_TRUE(p.listener().received.empty());
}

TEST(SimNetwork, AConnectTimesOutInAPartition) {
  Pair p(1);
  const Endpoint at = p.b->listen();
  p.world.fabric().partition("a", "b");
  p.a->connect(at, 3s);
  p.world.run_for(2900ms);
  EXPECT_FALSE(p.a->error);
  p.world.run_for(200ms);
  ASSERT_TRUE(p.a->error);
  EXPECT_EQ(p.a->error->code(), Code::kDeadlineExceeded);
  p.world.fabric().heal();
  p.world.run_for(1min);
  EXPECT_TRUE(p.b->accepted.empty());
}

TEST(SimNetwork, ACrashIsReportedAfterTheSentFramesAndDestructorsSendNothing) {
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    Pair p(seed);
    p.meet();
    p.caller().send(0, 10);
    p.listener().send(0, 10);
    p.a->network->crash();
    p.caller().send(10, 10);
    p.world.run_for(1s);
    EXPECT_TRUE(p.caller().received.empty());
    EXPECT_FALSE(p.caller().closed);
    p.a.reset();
    ASSERT_TRUE(p.run_until([&] { return p.listener().closed.has_value(); }));
    EXPECT_TRUE(p.listener().received_exactly(0, 10));
  }
}

TEST(SimNetwork, ACrashedHostDoesNotAnswerUntilAProcessStartsThere) {
  Pair p(1);
  p.meet();
  const Endpoint at = p.b->listener->endpoint();
  p.world.fabric().crash("b");
  p.b.reset();
  ASSERT_TRUE(p.run_until([&] { return p.caller().closed.has_value(); }, 1s));
  p.a->connect(at, 2s);
  p.world.run_for(3s);
  ASSERT_TRUE(p.a->error);
  EXPECT_EQ(p.a->error->code(), Code::kDeadlineExceeded);
  p.b = p.process("b", 23);
  p.a->error.reset();
  p.a->connect(at, 2s);
  p.world.run_for(1s);
  ASSERT_TRUE(p.a->error);  // no listener any more
  EXPECT_EQ(p.a->error->code(), Code::kUnavailable);
  p.a->called.reset();
  p.a->connect(p.b->listen(at));
  ASSERT_TRUE(p.run_until([&] { return p.a->called != nullptr; }, 1s));
}

TEST(SimNetwork, TheCrashOfAPartitionedHostIsReportedAfterTheHeal) {
  Pair p(1);
  p.meet();
  p.world.fabric().partition("a", "b");
  p.world.fabric().crash("b");
  p.b.reset();
  p.world.run_for(10min);
  EXPECT_FALSE(p.caller().closed);
  p.world.fabric().heal();
  p.world.run_for(2s);
  EXPECT_TRUE(p.caller().closed);
}

TEST(SimNetwork, APeerThatDoesNotReadIsDroppedAtTheBound) {
  SimNetworkOptions options;
  options.max_queued_bytes = 1000;
  Pair p(1, options);
  p.meet();
  p.world.fabric().partition("a", "b");
  p.caller().send(0, 100);
  EXPECT_FALSE(p.caller().closed);  // no on_closed inside send()
  p.world.run_for(1ms);
  ASSERT_TRUE(p.caller().closed);
  EXPECT_EQ(p.caller().closed->code(), Code::kResourceExhausted);
  p.world.fabric().heal();
  p.world.run_for(10s);
  EXPECT_TRUE(p.listener().closed);
  EXPECT_TRUE(p.listener().received_exactly(0, p.listener().received.size()));
}

TEST(SimNetwork, AnOversizedFrameEndsTheConnection) {
  SimNetworkOptions options;
  options.limits.max_payload_bytes = 5;
  Pair p(1, options);
  p.meet();
  p.caller().send(0, 1);
  ASSERT_TRUE(p.run_until([&] { return p.caller().closed && p.listener().closed; }));
  EXPECT_TRUE(p.listener().received.empty());
  EXPECT_EQ(p.listener().closed->code(), Code::kInvalidArgument);
}

TEST(SimNetwork, NothingIsAcceptedOnceTheListenerIsGone) {
  for (const auto seed : seeds(kSeeds)) {
    SCOPED_TRACE("SHOAL_SEED=" + std::to_string(seed));
    Pair p(seed);
    p.a->connect(p.b->listen());
    p.world.run_for(between(p.world.random(), 0s, 6ms));
    const auto before = p.b->accepted.size();
    p.b->listener.reset();
    p.world.run_for(10s);
    EXPECT_EQ(p.b->accepted.size(), before);
    EXPECT_EQ(p.a->error || p.caller().closed, before == 0);  // the verdict may be under way
  }
}

TEST(SimNetwork, FramesWaitForAConnectionThatIsStartedLater) {
  Pair p(1);
  std::unique_ptr<Connection> unstarted;
  p.a->network->connect(p.b->listen(), Role::kClient, 5s, [&](Result<std::unique_ptr<Connection>> r) { unstarted = *std::move(r); });
  ASSERT_TRUE(p.run_until([&] { return unstarted && !p.b->accepted.empty(); }));
  p.listener().send(0, 5);
  p.world.run_for(1s);
  p.a->called = std::make_unique<End>(std::move(unstarted));
  p.world.run_for(1s);
  EXPECT_TRUE(p.caller().received_exactly(0, 5));
}

}  // namespace
}  // namespace shoal::runtime
