#include "runtime/transport/process_group/collective_backend.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"
#include "runtime/transport/shm/shm_communicator.h"

namespace shoal::runtime {
namespace {

constexpr std::uint32_t kLostTag = 7;  // messages with this tag fail

WorkPtr lost_message() { return failed_work(data_loss("the message was lost").with_reason("Cut")); }

// Moves bytes with another communicator, in place of a process group.
class Backend final : public CollectiveBackend {
 public:
  explicit Backend(std::shared_ptr<Communicator> under) : under_(std::move(under)) {}
  Result<void> all_gather(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts counts,
                          const Call& call) override {
    return under_->all_gather(input, output, counts, DType::kUInt8, call)->wait();
  }
  Result<void> all_to_all(std::span<const std::byte> input, std::span<std::byte> output, Communicator::Counts sends,
                          Communicator::Counts receives, const Call& call) override {
    return under_->all_to_all(input, output, sends, receives, DType::kUInt8, call)->wait();
  }
  Result<void> broadcast(std::span<std::byte> data, int root, const Call& call) override {
    return under_->broadcast(data, root, DType::kUInt8, call)->wait();
  }
  Result<void> barrier(const Call& call) override { return under_->barrier(call)->wait(); }
  WorkPtr send(std::span<const std::byte> data, int to, std::uint32_t tag, const Call& call) override {
    return tag == kLostTag ? lost_message() : under_->send(data, to, DType::kUInt8, tag, call);
  }
  WorkPtr receive(std::span<std::byte> data, int from, std::uint32_t tag, const Call& call) override {
    return tag == kLostTag ? lost_message() : under_->receive(data, from, DType::kUInt8, tag, call);
  }
  void abort(const Error& cause) override { under_->abort(cause); }
  void leave() override { under_->leave(); }

 private:
  const std::shared_ptr<Communicator> under_;
};

class BackendCommunicatorTest : public testing::TestWithParam<int> {
 protected:
  void run(int world, const std::function<void(BackendCommunicator&)>& program) {
    const std::size_t bytes = ShmMemory::bytes({world});
    const Fd fd = make_memory("test", bytes).value();
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r) {
      ranks.emplace_back([&, r] {
        ShmCommunicator::Options o;
        o.rank = r;
        o.world_size = world;
        o.spins = 0;
        o.memory = [&](const std::string&, std::size_t n, int) -> Result<std::shared_ptr<Mapping>> {
          return std::make_shared<Mapping>(map(fd, n, Access::kReadWrite).value());
        };
        BackendCommunicator c(r, world, std::make_shared<Backend>(ShmCommunicator::make(o, clock_).value()), "test");
        program(c);
      });
    }
    for (auto& t : ranks) t.join();
  }
  Loop loop_;
  const std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
};

float value(int rank, std::size_t i) { return 0.1f * static_cast<float>(rank + 1) + static_cast<float>(i); }

TEST_P(BackendCommunicatorTest, ReducesInTheOrderOfRanksWhateverTheSize) {
  const int world = GetParam();
  for (const std::size_t numel : {std::size_t{0}, std::size_t{5}, std::size_t{4001}}) {
    run(world, [&](BackendCommunicator& c) {
      std::vector<float> mine(numel), expected(numel);
      for (std::size_t i = 0; i < numel; ++i) {
        mine[i] = value(c.rank(), i);
        expected[i] = value(0, i);
        for (int r = 1; r < world; ++r) expected[i] += value(r, i);
      }
      std::vector<std::size_t> counts(static_cast<std::size_t>(world));  // one element per rank, the rest to the last rank
      for (auto& n : counts) n = numel > counts.size() ? 4 : 0;
      counts.back() = (numel - (numel > counts.size() ? counts.size() - 1 : 0)) * 4;
      std::vector<float> part(counts[static_cast<std::size_t>(c.rank())] / 4);
      ASSERT_TRUE(c.reduce_scatter(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(part)), counts, DType::kFloat32,
                                   ReduceOp::kSum, {})
                      ->wait());
      const std::size_t begin = numel > counts.size() ? static_cast<std::size_t>(c.rank()) : 0;
      for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], expected[begin + i]);
      const auto all = std::as_writable_bytes(std::span(mine));
      ASSERT_TRUE(c.all_reduce(all, all, DType::kFloat32, ReduceOp::kSum, {})->wait());
      ASSERT_EQ(mine, expected);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, BackendCommunicatorTest, testing::Values(1, 2, 3));

TEST_F(BackendCommunicatorTest, AFailureIsTheGroupsAndTheFirstCauseCounts) {
  run(2, [&](BackendCommunicator& c) {
    std::vector<std::byte> v(8 + 8 * static_cast<std::size_t>(c.rank()));
    const auto ended = c.all_reduce(v, v, DType::kUInt8, ReduceOp::kSum, {})->wait();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
    const auto later = c.barrier({})->wait();
    EXPECT_EQ(later.error().message(), ended.error().message());
    EXPECT_EQ(c.window(1, {}).error().code(), Code::kUnimplemented);
    EXPECT_EQ(c.reform().error().code(), Code::kUnimplemented);
  });
}

TEST_F(BackendCommunicatorTest, AFailedMessageFailsTheOtherRanksWithItsCause) {
  for (const bool sends : {true, false}) {
    run(2, [&](BackendCommunicator& c) {
      std::vector<std::byte> v(8);
      if (c.rank() == 0) {
        const auto message = sends ? c.send(v, 1, DType::kUInt8, kLostTag, {}) : c.receive(v, 1, DType::kUInt8, kLostTag, {});
        EXPECT_EQ(message->wait().error().reason(), "Cut");
        EXPECT_EQ(c.barrier({})->wait().error().reason(), "Cut");
      } else {
        const auto ended = c.barrier({})->wait();
        ASSERT_FALSE(ended);
        EXPECT_EQ(ended.error().reason(), "Cut") << ended.error().to_string();
      }
    });
  }
}

TEST_F(BackendCommunicatorTest, ARankThatHasLeftMakesNoCalls) {
  run(2, [&](BackendCommunicator& c) {
    c.leave();
    std::vector<std::byte> v(8);
    const int other = 1 - c.rank();
    for (const auto& work :
         {c.send(v, other, DType::kUInt8, kLostTag, {}), c.receive(v, other, DType::kUInt8, kLostTag, {}), c.barrier({})}) {
      const auto ended = work->wait();
      ASSERT_FALSE(ended);
      EXPECT_EQ(ended.error().reason(), "Closed");
    }
  });
}

}  // namespace
}  // namespace shoal::runtime
