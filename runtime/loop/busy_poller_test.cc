#include "runtime/loop/busy_poller.h"

#include <unistd.h>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

struct Box final : PollSource {
  bool poll() override {
    ++polls;
    if (waiting == 0) return false;
    --waiting;
    ++done;
    if (on_poll) on_poll();
    return true;
  }
  bool prepare_to_sleep() override {
    if (waiting > 0) return false;
    ++dozed;
    return true;
  }
  int waiting = 0, done = 0, polls = 0, dozed = 0;
  std::function<void()> on_poll;
};

class BusyPollerTest : public testing::Test {
 protected:
  std::shared_ptr<Box> add() {
    auto out = std::make_shared<Box>();
    loop_.busy_poller().add_ring(out);
    return out;
  }
  Loop loop_;
};

TEST_F(BusyPollerTest, EachHasItsTurn) {
  const auto a = add(), b = add();
  a->waiting = b->waiting = 100;
  for (int i = 0; i < 20; ++i) loop_.run_one(1h);
  EXPECT_EQ(a->done, 10);
  EXPECT_EQ(b->done, 10);
}

TEST_F(BusyPollerTest, HandlersHaveTheirTurnBesideWorkThatNeverEnds) {
  const auto a = add();
  a->waiting = 1'000'000;
  bool ran = false;
  loop_.post([&] { ran = true; });
  for (int i = 0; i < 100; ++i) loop_.run_one(1h);
  EXPECT_TRUE(ran);
}

TEST_F(BusyPollerTest, TheLoopSleepsOnlyAfterEachHasDozed) {
  const auto a = add(), b = add();
  loop_.run_one(1ms);
  EXPECT_TRUE(loop_.busy_poller().empty());
  EXPECT_EQ(a->dozed + b->dozed, 2);
  loop_.busy_poller().add_ring(a);
  loop_.busy_poller().add_ring(b);
  a->waiting = 1;
  EXPECT_FALSE(loop_.busy_poller().prepare_to_sleep());
  loop_.run_one(1h);  // returns without a sleep
  EXPECT_EQ(a->done, 1);
}

TEST_F(BusyPollerTest, AFoundEventEndsTheSpin) {
  const auto a = add();
  // Other threads may take the core, which ends the spin and prevents the next ones for a while.
  constexpr int kTries = 10'000;
  for (int i = 0; i < kTries && a->done == 0; ++i, usleep(1000)) {
    loop_.busy_poller().busy_poll([&] {
      a->waiting = 1;  // work that arrives during the spin
      return false;
    });
  }
  EXPECT_EQ(a->done, 1);
  int between = 0;
  bool found = false;
  for (int i = 0; i < kTries && !found; ++i, usleep(1000)) found = loop_.busy_poller().busy_poll([&] { return ++between == 2; });
  EXPECT_TRUE(found);
  EXPECT_EQ(between, 2);
  EXPECT_EQ(a->done, 1);
}

TEST_F(BusyPollerTest, WithoutPolledSourcesOnlyTheBetweenFunctionRuns) {
  ASSERT_TRUE(loop_.busy_poller().empty());
  int between = 0;
  EXPECT_TRUE(loop_.busy_poller().busy_poll([&] { return ++between == 2; }));
  EXPECT_EQ(between, 2);
  EXPECT_FALSE(loop_.busy_poller().busy_poll([] { return false; }));
  int handled = 0;
  loop_.post([&] { ++handled; });
  loop_.run_one(1h, Loop::Idle::kSpin);
  EXPECT_EQ(handled, 1);
}

TEST_F(BusyPollerTest, SpinningThatNeverFindsEventsBecomesRare) {
  std::uint64_t between = 0;
  const auto runs = [&](int n) {
    const auto before = between;
    for (int i = 0; i < n; ++i) loop_.busy_poller().busy_poll([&] { return ++between == 0; });
    return between - before;
  };
  runs(100);  // uses up the credit
  std::uint64_t asked = 0;
  for (int i = 0; i < 320; ++i) asked += runs(1) > 0;
  EXPECT_LE(asked, 40U);
}

TEST_F(BusyPollerTest, ASocketIsLookedAtOnlyWhileThereIsNothingElseToDo) {
  const auto socket = std::make_shared<Box>();
  loop_.busy_poller().add_socket(socket);
  int handled = 0;
  for (int i = 0; i < 20; ++i) loop_.post([&] { ++handled; });
  while (handled < 20) loop_.run_one(1h, Loop::Idle::kSpin);
  EXPECT_EQ(socket->polls, 0);
  EXPECT_FALSE(loop_.busy_poller().poll_rings());
  EXPECT_FALSE(loop_.poll_one());
  EXPECT_EQ(socket->polls, 0);
  socket->waiting = 1;
  loop_.busy_poller().busy_poll([] { return false; });
  EXPECT_EQ(socket->done, 1);
  loop_.run_one(1ms);
  EXPECT_EQ(socket->dozed, 1);
  EXPECT_TRUE(loop_.busy_poller().empty());
  loop_.busy_poller().add_socket(socket);
  loop_.busy_poller().remove(*socket);
  EXPECT_TRUE(loop_.busy_poller().empty());
}

TEST_F(BusyPollerTest, BesideARingASocketIsLookedAtNowAndThen) {
  const auto ring = add(), socket = std::make_shared<Box>();
  loop_.busy_poller().add_socket(socket);
  for (int i = 0; i < 1000; ++i) loop_.busy_poller().busy_poll([] { return false; });
  EXPECT_GT(ring->polls, 0);
  EXPECT_LE(socket->polls, ring->polls / 32);
}

TEST_F(BusyPollerTest, ALongQuietSourceDozesByItself) {
  std::vector<std::shared_ptr<Box>> boxes;
  for (int i = 0; i < 100; ++i) boxes.push_back(add());
  for (int i = 0; i < 100'000; ++i) {
    boxes[7]->waiting = 1;
    loop_.poll_one();
  }
  EXPECT_GT(boxes[8]->dozed, 0);
  EXPECT_EQ(boxes[7]->dozed, 0);
  const int polls = boxes[8]->polls;
  loop_.poll_one();
  EXPECT_EQ(boxes[8]->polls, polls);
}

TEST_F(BusyPollerTest, APolledSourceMayAddAndRemoveSources) {
  auto a = add(), b = add();
  a->waiting = b->waiting = 5;
  const auto end_both = [&] {
    loop_.busy_poller().remove(*a);
    loop_.busy_poller().remove(*b);
    add();
  };
  a->on_poll = b->on_poll = end_both;
  loop_.poll();
  EXPECT_EQ(a->done + b->done, 1);
  EXPECT_EQ(a.use_count() + b.use_count(), 2);
}

}  // namespace
}  // namespace shoal::runtime
