#include <algorithm>
#include <atomic>
#include <ctime>
#include <deque>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/loop/clock.h"
#include "runtime/loop/future.h"
#include "runtime/loop/loop_thread.h"
#include "runtime/loop/random.h"
#include "runtime/loop/side_work.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

TEST(Loop, RunsPostedFunctionsInOrder) {
  Loop loop;
  std::vector<int> seen;
  for (int i = 0; i < 5; ++i) loop.post([&seen, i] { seen.push_back(i); });
  EXPECT_EQ(loop.poll(), 5u);
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(Clock, ATimerThatIsDestroyedNeverFires) {
  Loop loop;
  const auto clock = make_real_clock(loop);
  bool kept = false, dropped = false;
  const Timer a = clock->after(1ms, [&] { kept = true; });
  {
    const Timer b = clock->after(1ms, [&] { dropped = true; });
  }
  const auto end = clock->now() + 2s;
  while (!kept && clock->now() < end) loop.run_one(10ms);
  loop.poll();
  EXPECT_TRUE(kept);
  EXPECT_FALSE(dropped);
}

TEST(Clock, ATimerThatIsDestroyedWhileItsCallIsQueuedNeverFires) {
  Loop loop;
  const auto clock = make_real_clock(loop);
  int fired = 0;
  Timer a, b;
  a = clock->after(1ms, [&] { ++fired, b = Timer(); });
  b = clock->after(1ms, [&] { ++fired, a = Timer(); });
  std::this_thread::sleep_for(5ms);  // until both timers are due
  const auto end = clock->now() + 2s;
  while (fired == 0 && clock->now() < end) loop.run_one(10ms);
  loop.poll();
  EXPECT_EQ(fired, 1);
}

TEST(Clock, ATimerThatIsDueAtOnceRunsLaterAndOnlyWhileItLives) {
  Loop loop;
  const auto clock = make_real_clock(loop);
  std::vector<int> ran;
  const Timer first = clock->after(0ms, [&] { ran.push_back(1); });
  Timer dropped = clock->after(0ms, [&] { ran.push_back(2); });
  Timer third;
  const Timer second = clock->after(0ms, [&] {
    third = clock->after(0ms, [&] { ran.push_back(4); });
    ran.push_back(3);
  });
  dropped = Timer();
  EXPECT_TRUE(ran.empty());
  const auto end = clock->now() + 2s;
  while (ran.size() < 3 && clock->now() < end) loop.run_one(10ms);
  EXPECT_EQ(ran, (std::vector{1, 3, 4}));
}

TEST(LoopThread, TheBackgroundThreadRunsTheLoopWhileNoOtherThreadDoes) {
  Loop loop;
  LoopThread host(loop);
  std::atomic<bool> ran{false};
  loop.post([&] { ran = true; });
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (!ran && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(ran);
}

TEST(LoopThread, AWaitingThreadRunsTheHandlersItself) {
  Loop loop;
  LoopThread host(loop);
  std::thread::id ran_on;
  bool done = false;
  host.own([&] {
    loop.post([&] {
      ran_on = std::this_thread::get_id();
      done = true;
    });
  });
  EXPECT_EQ(host.wait([&] { return done; }, LoopThread::kForever), LoopThread::Woken::kReady);
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(LoopThread, AWaitEndsAtItsDeadlineOrWhenInterrupted) {
  Loop loop;
  LoopThread host(loop);
  EXPECT_EQ(host.wait([] { return false; }, std::chrono::steady_clock::now() + 5ms), LoopThread::Woken::kDeadline);
  EXPECT_EQ(host.wait([] { return false; }, LoopThread::kForever, [] { return true; }), LoopThread::Woken::kInterrupted);
}

// Each handler posts the next one, so a thread that runs single handlers now and then does not finish the chain.
struct Chain {
  Loop& loop;
  std::atomic<int> left;
  void step() {
    if (--left > 0) loop.post([this] { step(); });
  }
};

TEST(LoopThread, AThreadThatOwnsTheLoopAgainAndAgainStarvesNoHandler) {
  Loop loop;
  LoopThread host(loop);
  Chain chain{loop, 500};
  loop.post([&] { chain.step(); });
  const auto end = std::chrono::steady_clock::now() + 10s;
  while (chain.left > 0 && std::chrono::steady_clock::now() < end) host.own([] {});
  EXPECT_EQ(chain.left, 0);
}

TEST(LoopThread, AfterAHandOverTheBackgroundThreadServesAtOnce) {
  Loop loop;
  LoopThread host(loop, {.grace = 1h, .interrupt_period = 50ms});
  for (int i = 0; i < 100; ++i) {
    std::promise<void> ran;
    host.own([&] { loop.post([&] { ran.set_value(); }); });
    host.hand_over();
    ASSERT_EQ(ran.get_future().wait_for(30s), std::future_status::ready) << i;
  }
}

TEST(LoopThread, AHandOverLeavesTheLoopToThreadsThatWait) {
  Loop loop;
  LoopThread host(loop);
  std::atomic<bool> done = false;
  std::thread server([&] { host.wait([&] { return done.load(); }, LoopThread::kForever); });
  for (int i = 0; i < 1000; ++i) {
    bool ran = false;
    host.hand_over();
    host.wait([&] { return std::exchange(ran, true); }, LoopThread::kForever);
  }
  host.own([&] { done = true; });
  server.join();
}

TEST(LoopThread, AThreadThatAsksWithoutWaitingStarvesNoHandler) {
  Loop loop;
  LoopThread host(loop);
  Chain chain{loop, 500};
  loop.post([&] { chain.step(); });
  const auto end = std::chrono::steady_clock::now() + 10s;
  auto woken = LoopThread::Woken::kDeadline;
  while (woken != LoopThread::Woken::kReady && std::chrono::steady_clock::now() < end) {
    woken = host.wait([&] { return chain.left == 0; }, std::chrono::steady_clock::now());
  }
  EXPECT_EQ(woken, LoopThread::Woken::kReady);
}

// Threads that wait for one flag each.
class Waiters {
 public:
  Waiters(LoopThread& host, std::size_t count) : host_(host), flags_(count) {
    for (auto& flag : flags_)
      threads_.emplace_back(
          [this, &flag] { woken_ += host_.wait([&] { return flag; }, LoopThread::kForever) == LoopThread::Woken::kReady; });
  }
  void set_from(Loop& loop, std::size_t k) {
    loop.post([this, k] { flags_[k] = true; });
  }
  void join(std::size_t k) { threads_[k].join(); }
  int woken() const { return woken_; }

 private:
  LoopThread& host_;
  std::deque<bool> flags_;
  std::vector<std::thread> threads_;
  std::atomic<int> woken_{0};
};

std::chrono::nanoseconds cpu_time() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

TEST(LoopThread, OneWaitingThreadServesForAllAndTheOthersSleep) {
  Loop loop;
  LoopThread host(loop);
  Waiters waiters(host, 4);
  std::this_thread::sleep_for(100ms);  // time for most of them to start waiting
  const auto before = cpu_time();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(cpu_time() - before, 250ms);
  for (const std::size_t k : {2, 0, 3, 1}) {  // any order of leaders and followers
    waiters.set_from(loop, k);
    waiters.join(k);
  }
  EXPECT_EQ(waiters.woken(), 4);
}

TEST(LoopThread, AServingThreadMayBeInterruptedAndWaitAgainInside) {
  Loop loop;
  LoopThread host(loop, {.grace = 50us, .interrupt_period = 1ms});
  std::vector<std::thread> threads;
  std::atomic<int> good{0}, interrupts{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        bool flag = false;
        const auto interrupted = [&] {
          ++interrupts;
          (void)host.wait([] { return false; }, std::chrono::steady_clock::now() + std::chrono::microseconds(100 * (t % 3)));
          return false;
        };
        const auto timer = std::async(std::launch::async, [&] {
          if (i % 20 == t) std::this_thread::sleep_for(3ms);
          loop.post([&] { flag = true; });
        });
        if (i % 7 == t) (void)host.wait([&] { return flag; }, std::chrono::steady_clock::now() + 500us, interrupted);
        good += host.wait([&] { return flag; }, std::chrono::steady_clock::now() + 60s, interrupted) == LoopThread::Woken::kReady;
      }
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(good, 600);
  EXPECT_GT(interrupts, 0);
}

TEST(LoopThread, HandlersAndOwnersNeverOverlap) {
  Loop loop;
  LoopThread host(loop, {.grace = 50us, .interrupt_period = 1ms});
  int shared = 0;  // without a lock, for ThreadSanitizer
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        int target = 0;
        host.own([&] { target = ++shared; });
        loop.post([&] { ++shared; });
        if (i % 10 == t) host.wait([&] { return shared > target; }, std::chrono::steady_clock::now() + 10s);
        if (i % 50 == 0) std::this_thread::sleep_for(200us);
      }
      ++finished;
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(finished, 4);
  host.wait([&] { return shared == 1600; }, std::chrono::steady_clock::now() + 10s);
  EXPECT_EQ(shared, 1600);
}

TEST(SideWork, IsDoneInOrderOnAnotherThreadAndFollowedUpOnTheLoop) {
  Loop loop;
  SideWork side(loop);
  const auto here = std::this_thread::get_id();
  std::vector<int> done, followed;  // without a lock, for ThreadSanitizer
  for (int i = 0; i < 100; ++i) {
    side.run(
        [&done, here, i] {
          EXPECT_NE(std::this_thread::get_id(), here);
          done.push_back(i);
        },
        [&followed, here, i] {
          EXPECT_EQ(std::this_thread::get_id(), here);
          followed.push_back(i);
        });
  }
  EXPECT_TRUE(followed.empty());  // no call from inside run()
  while (followed.size() < 100) loop.run_one(60s);
  EXPECT_EQ(done, followed);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
}

TEST(SideWork, ADestroyedSideWorkRunsNoCompletion) {
  Loop loop;
  int followed = 0;
  auto shared = std::make_shared<int>(0);
  const std::weak_ptr<int> kept = shared;
  {
    SideWork side(loop);
    for (int i = 0; i < 100; ++i) side.run([shared] { ++*shared; }, [shared, &followed] { ++followed; });
    shared.reset();
  }
  loop.poll();
  EXPECT_EQ(followed, 0);
  EXPECT_TRUE(kept.expired());
}

TEST(Future, CallsBackOnceAndTheFirstValueCounts) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  int calls = 0;
  future.then([&](const Result<int>& r) { calls += *r; });
  promise.set(1);
  promise.set(100);
  future.then([&](const Result<int>& r) { calls += *r; });
  EXPECT_EQ(calls, 2);
}

TEST(Random, SeededSequencesRepeatAndRealOnesDoNot) {
  SeededRandom a(7), b(7);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(a.next(), b.next());
  const auto real = make_real_random();
  EXPECT_NE(real->next(), real->next());
}

}  // namespace
}  // namespace shoal::runtime
