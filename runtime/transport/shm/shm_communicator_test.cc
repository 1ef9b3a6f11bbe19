#include "runtime/transport/shm/shm_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/loop/loop.h"
#include "runtime/transport/conformance/test_host.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;
using Floats = std::vector<float>;

std::span<const std::byte> in(const Floats& v) { return std::as_bytes(std::span(v)); }
std::span<std::byte> out(Floats& v) { return std::as_writable_bytes(std::span(v)); }
Call label(std::string text, std::uint64_t step = 0) {
  Call c;
  c.label = std::move(text);
  c.step = step;
  return c;
}

class ShmCommunicatorTest : public testing::Test {
 protected:
  // Runs the program on every rank, each in its own thread with its own communicator.
  void run(int world, const std::function<void(Communicator&)>& program) {
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r) {
      ranks.emplace_back([&, r] {
        const auto c = make(r, world);
        program(*c);
      });
    }
    for (auto& t : ranks) t.join();
  }
  std::shared_ptr<Communicator> make(int rank, int world) {
    auto request = request_;
    request.rank = rank;
    request.world_size = world;
    if (request.name.empty()) request.name = "test";
    if (!request.memory) request.memory.emplace().spins = false;
    request.memory->open = [this](const std::string& name, std::size_t bytes, int) { return host_.open(name, bytes); };
    return ShmCommunicator::make(std::move(request), clock_).value();
  }

  Loop loop_;
  std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  TestHost host_;
  CommunicatorRequest request_;
};

// Runs `speed` times as fast as another clock. Calls `act` in the next now().
class TestClock final : public Clock {
 public:
  TestClock(std::shared_ptr<Clock> clock, int speed) : clock_(std::move(clock)), speed_(speed) {}
  TimePoint now() const override {
    if (act) std::exchange(act, nullptr)();
    return TimePoint(clock_->now().time_since_epoch() * speed_);
  }
  std::int64_t unix_millis() const override { return clock_->unix_millis(); }
  Timer after(Duration delay, std::function<void()> fn) override { return clock_->after(delay, std::move(fn)); }

  mutable std::function<void()> act;

 private:
  const std::shared_ptr<Clock> clock_;
  const int speed_;
};

void expect_text(const Result<void>& result, Code code, const std::vector<std::string>& texts) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), code);
  for (const auto& t : texts) EXPECT_NE(result.error().to_string().find(t), std::string::npos) << result.error().to_string();
}

TEST_F(ShmCommunicatorTest, DifferentCollectivesAreNamedOnEveryRank) {
  run(3, [&](Communicator& c) {
    Floats v(10);
    ASSERT_TRUE(c.barrier({})->wait());
    const auto work = c.rank() == 2 ? c.broadcast(out(v), 0, DType::kFloat32, label("embed", 4))
                                    : c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, label("clip", 3));
    auto ended = work->wait();
    if (ended) ended = c.barrier({})->wait();  // the broadcast itself may succeed, but then the barrier fails
    expect_text(ended, Code::kInvalidArgument,
                {"broadcast 2 (40 bytes of float32 from rank 0) 'embed', step 4", "'clip', step 3", "rank 2"});
    EXPECT_FALSE(c.barrier({})->wait());
  });
}

TEST_F(ShmCommunicatorTest, RanksThatWaitForEachOtherGetAnError) {
  run(2, [&](Communicator& c) {
    Floats v(1);
    const auto work = c.rank() == 0 ? c.receive(out(v), 1, DType::kFloat32, 0, label("tokens", 5)) : c.barrier(label("end", 6));
    expect_text(work->wait(), Code::kInvalidArgument,
                {"wait for each other", "rank 0 waits for rank 1 in recv from rank 1 (tag 0, 4 bytes of float32) 'tokens', step 5",
                 "rank 1 waits for rank 0 in barrier 1 'end', step 6"});
  });
}

TEST_F(ShmCommunicatorTest, AWaitOfAThreadBesideTheProgramIsNoDeadlock) {
  clock_ = std::make_shared<TestClock>(clock_, 20);
  auto zero = make(0, 2), one = make(1, 2);
  Floats got(1), sent(1, 5);
  Call background;
  background.background = true;
  const auto received = zero->receive(out(got), 1, DType::kFloat32, 0, background);
  std::thread beside([&] { EXPECT_TRUE(received->wait()); });
  std::thread other([&] {
    EXPECT_TRUE(one->barrier({})->wait());
    EXPECT_TRUE(one->send(in(sent), 0, DType::kFloat32, 0, {})->wait());
  });
  // The program of rank 0 computes for a time in which a deadlock would be reported.
  const auto until = clock_->now() + 10s;
  while (!zero->failed() && clock_->now() < until) std::this_thread::yield();
  EXPECT_TRUE(zero->barrier({})->wait());
  beside.join();
  other.join();
  EXPECT_EQ(got, sent);
}

TEST_F(ShmCommunicatorTest, AMessageOfAnotherSizeOrTagIsNamed) {
  run(2, [&](Communicator& c) {
    Floats v(4);
    const auto work = c.rank() == 0 ? c.receive(out(v), 1, DType::kFloat32, 3, {}) : c.send(in(v).first(8), 0, DType::kFloat32, 2, {});
    auto ended = work->wait();
    if (ended) ended = c.barrier({})->wait();  // a send that fits into the channel succeeds, but the barrier fails
    expect_text(ended, Code::kInvalidArgument, {"tag 3, 16 bytes of float32", "rank 1 sends 8 bytes of float32 with tag 2"});
  });
}

TEST_F(ShmCommunicatorTest, ARankThatHasLeftIsNamed) {
  run(2, [&](Communicator& c) {
    ASSERT_TRUE(c.barrier({})->wait());
    if (c.rank() == 1) return;
    expect_text(c.barrier(label("second"))->wait(), Code::kUnavailable, {"rank 1 has left, rank 0 waits for it in barrier 2 'second'"});
  });
}

TEST_F(ShmCommunicatorTest, AnOutputLargerThanTheCachesArrivesWhole) {
  // Parts of odd sizes, so that most pieces do not begin at a cache line.
  const std::vector<std::size_t> counts = {(19 << 20) + 13, (15 << 20) + 101};
  const auto byte_of = [](std::size_t i) { return static_cast<std::byte>(i * 31 + (i >> 9)); };
  run(2, [&](Communicator& c) {
    std::vector<std::byte> whole(counts[0] + counts[1] + 1);  // one byte more than the collective writes
    const auto self = static_cast<std::size_t>(c.rank());
    const auto output = std::span(whole).first(whole.size() - 1), own = output.subspan(self * counts[0], counts[self]);
    const auto wrong = [&] {
      for (std::size_t i = 0; i < output.size(); ++i) {
        if (output[i] != byte_of(i)) return static_cast<std::ptrdiff_t>(i);
      }
      return std::ptrdiff_t{-1};
    };
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = byte_of(self * counts[0] + i);
    const std::vector<std::byte> input(own.begin(), own.end());
    ASSERT_TRUE(c.all_gather(own, output, counts, DType::kUInt8, {})->wait());  // in place
    EXPECT_EQ(wrong(), -1);
    std::fill(whole.begin(), whole.end(), std::byte{});
    ASSERT_TRUE(c.all_gather(input, output, counts, DType::kUInt8, {})->wait());
    EXPECT_EQ(wrong(), -1);
    if (c.rank() == 1) std::fill(whole.begin(), whole.end(), std::byte{});
    ASSERT_TRUE(c.broadcast(output, 0, DType::kUInt8, {})->wait());
    EXPECT_EQ(wrong(), -1);
    EXPECT_EQ(whole.back(), std::byte{});
  });
}

TEST_F(ShmCommunicatorTest, RanksThatPollAgreeWithOrWithoutACoreForEach) {
  for (const bool shares_cores : {false, true}) {
    request_.memory.emplace().shares_cores = shares_cores;
    request_.name = shares_cores ? "shared" : "own";
    run(4, [&](Communicator& c) {
      for (int i = 0; i < 200; ++i) {
        Floats v(1, static_cast<float>(c.rank() + i));
        ASSERT_TRUE(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {})->wait());
        ASSERT_EQ(v[0], static_cast<float>(6 + 4 * i));
      }
    });
  }
}

TEST_F(ShmCommunicatorTest, ADeathWhileTheGroupIsFormedAgainEndsIt) {
  auto zero = make(0, 3), one = make(1, 3), two = make(2, 3);
  host_.mark_gone("test/1", 2, "killed");
  const auto next = zero->reform().value();
  host_.mark_gone("test/1", 1, "killed as well");  // the rank dies before it has joined the next generation
  expect_text(next->barrier({})->wait(), Code::kUnavailable, {"killed as well"});
}

TEST_F(ShmCommunicatorTest, AfterItsFailureAnOperationLeavesItsBuffersAlone) {
  auto zero = make(0, 2), one = make(1, 2);
  const Floats own{1}, other{2};
  const std::vector<std::size_t> counts{sizeof(float), sizeof(float)};
  Floats gathered(2), others(2);
  const auto failing = zero->all_gather(in(own), out(gathered), counts, DType::kFloat32, {});
  const auto later = zero->barrier({});
  const auto brought = one->all_gather(in(other), out(others), counts, DType::kFloat32, {});
  zero->abort(cancelled("the job is over"));
  expect_text(failing->wait(), Code::kCancelled, {"the job is over"});
  EXPECT_TRUE(failing->ended());
  gathered = {-1, -1};  // from here on the caller may reuse the buffer
  (void)brought->wait();
  EXPECT_TRUE(later->ended());
  expect_text(later->wait(), Code::kCancelled, {"the job is over"});
  EXPECT_EQ(gathered, (Floats{-1, -1}));
}

TEST_F(ShmCommunicatorTest, LatenessIsAWarningAndThenAnError) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  request_.warn_after = 100ms;
  request_.warn = [&](const std::string& text) {
    const std::lock_guard lock(mutex);
    warnings.push_back(text);
  };
  auto zero = make(0, 2), one = make(1, 2);
  Call call = label("late", 8);
  call.timeout = 300ms;
  expect_text(zero->barrier(call)->wait(), Code::kDeadlineExceeded, {"barrier 1 'late', step 8", "rank 1 has called no collective yet"});
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("rank 0 waits in barrier 1 'late', step 8"), std::string::npos);
  expect_text(one->barrier({})->wait(), Code::kDeadlineExceeded, {"rank 0 waited"});
}

TEST_F(ShmCommunicatorTest, AnInterruptedWaitLeavesTheOperationUnderWay) {
  std::atomic<bool> stop{true};
  request_.interrupted = [&] { return stop.load(); };
  auto zero = make(0, 2), one = make(1, 2);
  const auto work = zero->barrier({});
  EXPECT_EQ(work->wait().error().reason(), "Interrupted");
  stop = false;
  std::thread other([&] { EXPECT_TRUE(one->barrier({})->wait()); });
  EXPECT_TRUE(work->wait());
  other.join();
}

// A communicator reads the clock while it holds its lock.
TEST_F(ShmCommunicatorTest, AChildThatIsForkedWhileItsParentHoldsTheLockGetsAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "other threads may hold locks of the sanitizer's allocator, which the child would wait for";
#endif
  const auto clock = std::make_shared<TestClock>(clock_, 1);
  clock_ = clock;
  const auto c = make(0, 2), other = make(1, 2);
  Floats v(1);
  const std::vector<std::function<bool()>> calls{
      [&] { return c->barrier({})->wait().error().reason() == "Forked"; },
      [&] { return c->send(in(v), 1, DType::kFloat32, 0, {})->wait().error().reason() == "Forked"; },
      [&] { return c->receive(out(v), 1, DType::kFloat32, 0, {})->wait().error().reason() == "Forked"; },
      [&] { return c->window(8, {}).error().reason() == "Forked"; },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    pid_t child = -1;
    clock->act = [&] {
      child = fork();
      if (child != 0) return;
      alarm(5);  // ends a child that waits for the lock
      _exit(calls[i]() ? 0 : 1);
    };
    const auto sent = c->send(in(v), 1, DType::kFloat32, 0, {});
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "call " << i;
    ASSERT_TRUE(sent->wait());
    ASSERT_TRUE(other->receive(out(v), 0, DType::kFloat32, 0, {})->wait());
  }
}

// Parts of some of these sizes are read out of the other ranks' processes, where the kernel permits that.
TEST_F(ShmCommunicatorTest, AnAllGatherCopiesInputsThatChangeRightAfterIt) {
  constexpr int kWorld = 3, kTimes = 90;
  run(kWorld, [](Communicator& c) {
    for (int k = 0; k < kTimes; ++k) {
      const std::size_t most = std::array{1'500, 70'000, 400'000}[static_cast<std::size_t>(k) % 3];
      std::vector<std::size_t> counts;
      for (std::size_t r = 0; r < kWorld; ++r) counts.push_back((most - r * 17) * sizeof(float));
      Floats input(counts[static_cast<std::size_t>(c.rank())] / sizeof(float), static_cast<float>(10 * k + c.rank()));
      Floats output((counts[0] + counts[1] + counts[2]) / sizeof(float));
      ASSERT_TRUE(c.all_gather(in(input), out(output), counts, DType::kFloat32, label("gather"))->wait());
      std::ranges::fill(input, -1.0f);
      std::size_t at = 0;
      for (std::size_t r = 0; r < kWorld; ++r) {
        const auto part = std::span(output).subspan(at, counts[r] / sizeof(float));
        const auto expected = static_cast<float>(10 * k) + static_cast<float>(r);
        ASSERT_TRUE(std::ranges::all_of(part, [&](float x) { return x == expected; })) << "call " << k << ", rank " << r;
        at += part.size();
      }
    }
  });
}

}  // namespace
}  // namespace shoal::runtime
