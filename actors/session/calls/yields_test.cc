#include "actors/session/calls/actor_calls_fixture.h"

namespace shoal::actors {
namespace {

using Yielded = ActorHost::Yielded;

TEST_F(ActorCallsTest, YieldedItemsArriveBeforeTheAnswer) {
  now_alive();
  Streams& streams = calls_.streams();
  const auto stream = streams.open();
  const auto done = call(kActor, "hold");
  streams.follow(stream, done);
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  Incoming& incoming = actor_->held.front();
  for (const int k : {0, 1, 2}) {
    EXPECT_EQ(host_->yields(incoming, stream, static_cast<std::uint64_t>(k), text_value(std::to_string(k))), Yielded::kSent);
  }
  incoming.reply(text_value("3"));
  ASSERT_TRUE(run_until_ready(done));
  for (const int k : {0, 1, 2}) {
    EXPECT_EQ(outcome(streams.next(stream)), std::to_string(k));
    streams.take(stream);
  }
  EXPECT_EQ(outcome(streams.next(stream)), "Unavailable/StreamOver");
}

TEST_F(ActorCallsTest, AGeneratorWithoutAReaderGetsAnError) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 0, text_value("a")), Yielded::kSent);
  world_.fabric().disconnect("caller", "host");
  ASSERT_TRUE(run_until_ready(held));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 1, text_value("b")), Yielded::kDisconnected);
  const auto again = call(kActor, "next");  // from the same caller, over another connection
  ASSERT_TRUE(run_until_ready(again));
  EXPECT_EQ(host_->yields(actor_->held.front(), 1, 1, text_value("b")), Yielded::kDisconnected);
}

TEST_F(ActorCallsTest, TwoGeneratorsOfOneCallerDoNotShareRoom) {
  now_alive();
  Streams& streams = calls_.streams();
  const auto stream = streams.open();
  const auto held = call(kActor, "hold"), other = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 2; }, 30s));
  const Value item = text_value(std::string(200'000, 'x'));
  std::uint64_t count = 0;
  for (int round = 0; round < 3; ++round) {
    std::size_t sent = 0, last = 1;
    for (std::size_t k = 0; k < 10; ++k) {
      const auto how = host_->yields(actor_->held[k % 2], k % 2 == 0 ? stream : 0, count, item);
      ASSERT_TRUE(how);
      last = host_->queued_bytes();
      if (*how == Yielded::kNoRoom) continue;
      EXPECT_EQ(how, Yielded::kSent);
      ++sent;
      count += k % 2 == 0;
    }
    EXPECT_EQ(sent, 2u);  // when the second was sent, at most kAhead bytes were queued
    EXPECT_LT(last, ActorHost::kAhead + 300'000);
    ASSERT_TRUE(world_.run_until([&] { return host_->queued_bytes() == 0; }, 30s));
  }
  world_.run_for(1s);
  for (std::uint64_t k = 0; k < count; ++k) {
    EXPECT_EQ(outcome(streams.next(stream)).size(), 200'000u);
    streams.take(stream);
  }
  EXPECT_EQ(outcome(streams.next(stream)), "pending");
}

TEST_F(ActorCallsTest, AnItemThatIsADescriptorWaitsUntilNothingElseDoes) {
  now_alive();
  const auto held = call(kActor, "hold");
  ASSERT_TRUE(world_.run_until([&] { return actor_->held.size() == 1; }, 30s));
  Incoming& incoming = actor_->held.front();
  const Value small = text_value("small"), large = text_value(std::string(200'000, 'x'));
  EXPECT_EQ(host_->yields(incoming, 1, 0, small), Yielded::kSent);
  ASSERT_GT(host_->queued_bytes(), 0u);
  incoming.local = true;  // a caller on the same host would get a descriptor instead of the bytes
  EXPECT_EQ(host_->yields(incoming, 1, 1, large), Yielded::kNoRoom);
  EXPECT_EQ(host_->yields(incoming, 1, 1, small), Yielded::kSent);
}

}  // namespace
}  // namespace shoal::actors
