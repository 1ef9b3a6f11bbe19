#include "runtime/transport/cuda_ipc/ipc_comm.h"

#include <atomic>
#include <future>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/device/kernels/on_host.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/conformance/test_host.h"
#include "runtime/transport/cuda_ipc/ipc_api.h"

namespace shoal::runtime {
namespace {

using Kind = IpcOperation::Kind;

// Ranks in one thread: the test decides which of them advances.
class CudaIpcTest : public testing::Test {
 protected:
  void SetUp() override { add_device_kernels(); }
  void TearDown() override {
    for (auto& rank : ranks_) rank->end();
    for (auto& stream : streams_) EXPECT_TRUE(device_->synchronize(stream.get()));
    // The first ones wait for the last to close what it has open.
    for (std::size_t r = 0; r < ranks_.size(); ++r) EXPECT_EQ(ranks_[r]->try_close(), r + 1 == ranks_.size());
    for (auto& rank : ranks_) EXPECT_TRUE(rank->try_close());
    ranks_.clear();
    streams_.clear();
    EXPECT_EQ(machine_.num_allocations(), 0u);
    EXPECT_EQ(machine_.num_events(), 0u);
    EXPECT_EQ(machine_.num_registered(), 0u);
    for (const auto& violation : machine_.take_violations()) ADD_FAILURE() << violation;
  }

  void join(int world, const void* kernels = "fake") {
    const auto name = std::string("/shoal-devices-test-") + testing::UnitTest::GetInstance()->current_test_info()->name();
    for (int r = 0; r < world; ++r) {
      ranks_.push_back(IpcComm::join(device_, name, world, r,
                                     {.chunk_bytes = 64,
                                      .message_bytes = 16,
                                      .kernels = kernels,
                                      .has_ended = [this](int rank, std::int32_t) { return rank == dead_; }})
                           .value());
      streams_.push_back(device_->make_stream().value());
    }
    for (auto& rank : ranks_) ASSERT_TRUE(rank->advance().value());
  }
  IpcOperation operation(Kind kind, int rank, const std::vector<float>& in, std::vector<float>& out, std::size_t count, int other = -1) {
    return {
        kind,  reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out.data()), count, nccl::kFloat32, nccl::kSum,
        other, streams_[static_cast<std::size_t>(rank)].get()};
  }
  // Advances all ranks in turn until nothing is left to do.
  void finish() {
    for (int i = 0; i < 1000; ++i) {
      bool through = true;
      for (auto& rank : ranks_) through &= rank->advance().value();
      if (through) break;
    }
    for (auto& rank : ranks_) ASSERT_TRUE(rank->advance().value());
    for (auto& stream : streams_) ASSERT_TRUE(device_->synchronize(stream.get()));
  }

  const FakeCuda::HostMemoryCounts host_memory_counts_;
  FakeCuda& machine_ = FakeCuda::machine();
  const std::shared_ptr<Device> device_ = Device::open(machine_.api(), 0).value();
  std::vector<Stream> streams_;
  std::vector<std::unique_ptr<IpcComm>> ranks_;
  std::atomic<int> dead_{-1};
};

TEST_F(CudaIpcTest, ARankPutsAStepOnItsStreamOnlyBehindTheOthersStepBefore) {
  join(2);
  std::vector<float> in0{1, 2}, in1{3, 4}, out0(4), out1(4);
  ranks_[0]->begin({operation(Kind::kAllGather, 0, in0, out0, 2)});
  EXPECT_FALSE(ranks_[0]->advance().value());  // its input is offered, and nothing can be read yet
  EXPECT_FALSE(ranks_[0]->advance().value());
  ranks_[1]->begin({operation(Kind::kAllGather, 1, in1, out1, 2)});
  EXPECT_TRUE(ranks_[1]->advance().value());
  EXPECT_TRUE(ranks_[0]->advance().value());
  finish();
  EXPECT_EQ(out0, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(out1, out0);
}

TEST_F(CudaIpcTest, NoHostWaitsForADevice) {
  join(2);
  std::promise<void> release;
  std::vector<float> in(1, 1), out0(1), out1(1);
  machine_.enqueue(streams_[0].get(), [&] {
    release.get_future().wait();
    in[0] = 5;
  });
  ranks_[0]->begin({operation(Kind::kAllReduce, 0, in, out0, 1)});
  std::vector<float> other{2};
  ranks_[1]->begin({operation(Kind::kAllReduce, 1, other, out1, 1)});
  for (int i = 0; i < 3; ++i) {
    for (auto& rank : ranks_) (void)rank->advance();
  }
  for (auto& rank : ranks_) EXPECT_TRUE(rank->advance().value());  // all is on the streams, which wait for the first kernel
  release.set_value();
  finish();
  EXPECT_EQ(out0[0], 7);
  EXPECT_EQ(out1[0], 7);
}

TEST_F(CudaIpcTest, ChunksOfALongReductionUseTheSameMemoryInTurn) {
  join(3);
  constexpr std::size_t kNumel = 101;
  std::vector<std::vector<float>> in(3, std::vector<float>(kNumel)), out(3, std::vector<float>(kNumel));
  for (std::size_t r = 0; r < 3; ++r) std::iota(in[r].begin(), in[r].end(), static_cast<float>(1000 * r));
  for (int round = 0; round < 2; ++round) {
    for (int r = 0; r < 3; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ranks_[i]->begin({operation(Kind::kAllReduce, r, in[i], out[i], kNumel)});
    }
    finish();
    for (std::size_t i = 0; i < kNumel; ++i) {
      for (std::size_t r = 0; r < 3; ++r) ASSERT_EQ(out[r][i], 3 * static_cast<float>(i) + 3000);
    }
  }
}

TEST_F(CudaIpcTest, MessagesOfOneGroupAdvanceTogether) {
  join(2);
  std::vector<float> none, in0(50), in1(50), out0(50), out1(50);
  std::iota(in0.begin(), in0.end(), 1.0f);
  std::iota(in1.begin(), in1.end(), 1000.0f);
  ranks_[0]->begin({operation(Kind::kSend, 0, in0, none, 50, 1), operation(Kind::kReceive, 0, none, out0, 50, 1)});
  ranks_[1]->begin({operation(Kind::kSend, 1, in1, none, 50, 0), operation(Kind::kReceive, 1, none, out1, 50, 0)});
  finish();
  EXPECT_EQ(out0, in1);
  EXPECT_EQ(out1, in0);
}

TEST_F(CudaIpcTest, AnEndWithWorkUnderWayKeepsTheMemoryUntilTheStreamHasPassed) {
  join(2);
  std::promise<void> release;
  std::vector<float> in(4, 1), out0(8), out1(8);
  ranks_[0]->begin({operation(Kind::kAllGather, 0, in, out0, 4)});
  ranks_[1]->begin({operation(Kind::kAllGather, 1, in, out1, 4)});
  (void)ranks_[0]->advance();
  machine_.enqueue(streams_[1].get(), [&] { release.get_future().wait(); });
  (void)ranks_[1]->advance();  // reads rank 0's memory once the stream goes on
  ranks_[0]->end();
  ranks_[1]->end();
  EXPECT_FALSE(ranks_[1]->try_close());
  EXPECT_FALSE(ranks_[0]->try_close());
  release.set_value();
  for (auto& stream : streams_) EXPECT_TRUE(device_->synchronize(stream.get()));
}

TEST_F(CudaIpcTest, StreamsGoOnOnceARankTheyWaitForHasDied) {
  join(3);
  std::promise<void> release;
  std::vector<float> in(4, 1), outs[3];
  machine_.enqueue(streams_[1].get(), [&] { release.get_future().wait(); });
  for (int r = 0; r < 3; ++r) {
    outs[r].resize(4);
    ranks_[static_cast<std::size_t>(r)]->begin({operation(Kind::kBroadcast, r, in, outs[r], 4, 1)});
  }
  for (int i = 0; i < 3; ++i) {
    for (auto& rank : ranks_) (void)rank->advance();
  }
  for (auto& rank : ranks_) EXPECT_TRUE(rank->advance().value());  // all is on the streams
  ranks_[0]->end();
  EXPECT_FALSE(ranks_[0]->try_close());  // rank 1 lives, so its step is still to come
  dead_ = 1;
  ranks_[2]->end();
  (void)ranks_[0]->try_close();
  EXPECT_TRUE(device_->synchronize(streams_[0].get()));
  EXPECT_TRUE(device_->synchronize(streams_[2].get()));
  EXPECT_EQ(ranks_[2]->advance().error().reason(), "ActorDied");  // no rank takes the released step for complete
  dead_ = -1;
  release.set_value();
  EXPECT_TRUE(device_->synchronize(streams_[1].get()));
}

TEST_F(CudaIpcTest, AStreamOfAFailedGroupGoesOnThoughTheRankItWaitsForLives) {
  join(2);
  std::promise<void> release;
  std::vector<float> in(4, 1), out0(4), out1(4);
  machine_.enqueue(streams_[1].get(), [&] { release.get_future().wait(); });
  ranks_[0]->begin({operation(Kind::kBroadcast, 0, in, out0, 4, 1)});
  ranks_[1]->begin({operation(Kind::kBroadcast, 1, in, out1, 4, 1)});
  for (int i = 0; i < 3; ++i) {
    for (auto& rank : ranks_) (void)rank->advance();
  }
  ranks_[0]->end();
  EXPECT_FALSE(ranks_[0]->try_close());
  (void)ranks_[0]->try_close(true);
  EXPECT_TRUE(device_->synchronize(streams_[0].get()));
  EXPECT_EQ(ranks_[1]->advance().error().reason(), "ActorDied");
  release.set_value();
  EXPECT_TRUE(device_->synchronize(streams_[1].get()));
}

TEST_F(CudaIpcTest, ARankWhoseStreamHasNoKnownEndKeepsTheOthersMemory) {
  join(2);
  std::vector<float> in(4, 1), out0(8), out1(8);
  ranks_[0]->begin({operation(Kind::kAllGather, 0, in, out0, 4)});
  ranks_[1]->begin({operation(Kind::kAllGather, 1, in, out1, 4)});
  finish();
  machine_.fail_next("record", cuda::kOutOfMemory);
  ranks_[0]->end();
  ranks_[1]->end();
  EXPECT_TRUE(device_->synchronize(streams_[1].get()));
  EXPECT_FALSE(ranks_[0]->try_close());
  EXPECT_FALSE(ranks_[1]->try_close());
  EXPECT_FALSE(ranks_[0]->try_close());
  ranks_.clear();  // as the process ends
}

TEST_F(CudaIpcTest, DevicesWhoseStreamsWriteNoWordsUseEvents) {
  for (const auto* const lacks : {"the device", "the registration"}) {
    SCOPED_TRACE(lacks);
    const bool device = lacks == std::string("the device");
    machine_.set_orders_by_words(!device);
    const auto old = Device::open(machine_.api(), 0).value();
    machine_.set_orders_by_words(true);
    EXPECT_EQ(old->orders_by_words(), !device);
    // One rank of three decides for all.
    const auto name = std::string("/shoal-devices-test-events-") + (device ? "d" : "r");
    std::vector<std::vector<float>> in{{1, 2}, {3, 4}, {5, 6}}, out(3, std::vector<float>(2));
    for (int r = 0; r < 3; ++r) {
      if (r == 1 && !device) machine_.fail_next("register", cuda::kNotSupported);
      ranks_.push_back(IpcComm::join(r == 1 ? old : device_, name, 3, r, {.chunk_bytes = 64, .kernels = "fake"}).value());
      streams_.push_back(device_->make_stream().value());
    }
    for (auto& rank : ranks_) ASSERT_TRUE(rank->advance().value());
    for (int r = 0; r < 3; ++r) {
      const auto i = static_cast<std::size_t>(r);
      ranks_[i]->begin({operation(Kind::kAllReduce, r, in[i], out[i], 2)});
    }
    finish();
    for (const auto& sum : out) EXPECT_EQ(sum, (std::vector<float>{9, 12}));
    if (device) {
      for (auto& rank : ranks_) rank->end();
      for (auto& stream : streams_) EXPECT_TRUE(device_->synchronize(stream.get()));
      for (std::size_t r = 0; r < 3; ++r) EXPECT_EQ(ranks_[r]->try_close(), r == 2);
      for (auto& rank : ranks_) EXPECT_TRUE(rank->try_close());
      ranks_.clear();
      streams_.clear();
    }
  }
}

// The process's table, whose options the first call decides on.
std::atomic<bool> dead{false};  // true: rank 1 counts as dead
const NcclApi& table() {
  add_device_kernels();
  return cuda_ipc_api(FakeCuda::machine().api(),
                      {.chunk_bytes = 1024, .message_bytes = 256, .kernels = "fake", .has_ended = [](int rank, std::int32_t) {
                         return rank == 1 && dead;
                       }});
}

TEST(CudaIpcGroup, AGroupWhoseMemoryIsSlowToCloseHoldsUpNoOther) {
  auto& machine = FakeCuda::machine();
  const auto& api = table();
  const auto device = Device::open(machine.api(), 0).value();
  const Device::Current current(*device);
  const FakeCuda::HostMemoryCounts host_memory_counts;
  std::array<NcclComm, 2> slow{}, other{};
  for (auto* const comms : {&slow, &other}) {
    NcclUniqueId id;
    ASSERT_EQ(api.get_unique_id(&id), nccl::kSuccess);
    for (int r = 0; r < 2; ++r) ASSERT_EQ(api.comm_init(&(*comms)[static_cast<std::size_t>(r)], 2, id, r, nullptr), nccl::kInProgress);
  }
  const auto advance = [&](NcclComm comm) {
    auto status = nccl::kInProgress;
    EXPECT_EQ(api.comm_async_error(comm, &status), nccl::kSuccess);
    return status;
  };
  std::array<float, 2> in{1, 2};
  std::array<float, 4> all{};
  const std::array<Stream, 2> streams{device->make_stream().value(), device->make_stream().value()};
  for (const auto comm : slow) EXPECT_EQ(advance(comm), nccl::kSuccess);
  EXPECT_EQ(api.all_gather(in.data(), all.data(), 1, nccl::kFloat32, slow[0], streams[0].get()), nccl::kInProgress);
  EXPECT_EQ(api.all_gather(in.data() + 1, all.data() + 2, 1, nccl::kFloat32, slow[1], streams[1].get()), nccl::kInProgress);
  for (int i = 0; i < 4; ++i) {
    for (const auto comm : slow) (void)advance(comm);
  }
  for (const auto& stream : streams) EXPECT_TRUE(device->synchronize(stream.get()));
  EXPECT_EQ(all, (std::array<float, 4>{1, 2, 1, 2}));

  machine.hold_closing(true);
  std::atomic<bool> over{false};
  std::thread closing([&] {
    EXPECT_EQ(api.comm_abort(slow[0]), nccl::kSuccess);
    while (!over) (void)sweep_cuda_ipc();  // the first one after the stream's end gets stuck
  });
  while (machine.num_closing() == 0) std::this_thread::yield();
  auto others = std::async(std::launch::async, [&] {
    const Device::Current here(*device);
    for (const auto comm : other) EXPECT_EQ(advance(comm), nccl::kSuccess);
    for (const auto comm : other) EXPECT_EQ(api.comm_abort(comm), nccl::kSuccess);
    NcclUniqueId id;
    EXPECT_EQ(api.get_unique_id(&id), nccl::kSuccess);
  });
  EXPECT_EQ(others.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  over = true;
  machine.hold_closing(false);
  closing.join();
  others.wait();
  EXPECT_EQ(api.comm_abort(slow[1]), nccl::kSuccess);
  EXPECT_TRUE(device->synchronize(streams[1].get()));
  EXPECT_EQ(sweep_cuda_ipc(), 0u);
  for (const auto& violation : machine.take_violations()) ADD_FAILURE() << violation;
}

// A group of three ranks as a program sees it. Rank 1 dies while its part of a broadcast is on its stream.
TEST(CudaIpcGroup, ADeathInTheMiddleOfAStepEndsTheSurvivorsStreamsAndIsNamed) {
  auto& machine = FakeCuda::machine();
  (void)table();
  Loop loop;
  const std::shared_ptr<Clock> clock = make_real_clock(loop);
  TestHost host;
  const auto device = Device::open(machine.api(), 0).value();
  const auto blocked = device->make_stream().value();
  std::promise<void> release;
  Meeting begun(3), over(3);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      CommunicatorRequest request;
      request.rank = r;
      request.world_size = 3;
      request.name = "group";
      request.nccl = NcclTransport{.device = 0, .cuda_ipc = true, .current_stream = nullptr, .cuda = &machine.api(), .kernels = "fake"};
      if (r == 1) request.nccl->current_stream = [&] { return blocked.get(); };
      auto& memory = request.memory.emplace();
      memory.spins = false;
      memory.open = [&](const std::string& name, std::size_t bytes, int) { return host.open(name, bytes); };
      const auto c = make_communicator(std::move(request), clock).value();
      const auto values = device->allocate(64).value();
      const auto behind = device->make_stream().value();
      if (r == 1) machine.enqueue(blocked.get(), [&] { release.get_future().wait(); });
      const auto work = c->broadcast(values.get(), 1, DType::kFloat32, {});
      EXPECT_TRUE(c->order_after(*work, behind.get()));
      begun.meet();  // all steps are on the streams
      if (r == 1) {
        dead = true;
        host.mark_gone("group/1", 1, "killed by SIGKILL");
      } else {
        const auto ended = work->wait();
        const auto error = ended ? internal("success") : ended.error();
        EXPECT_EQ(error.code(), Code::kUnavailable) << error.to_string();
        EXPECT_EQ(error.reason(), "ActorDied") << error.to_string();
        EXPECT_NE(error.message().find("rank 1"), std::string::npos) << error.to_string();
        EXPECT_TRUE(device->synchronize(behind.get()));  // rank 1's stream still stands
      }
      over.meet();
      if (r == 1) {
        release.set_value();
        (void)work->wait();
        EXPECT_TRUE(device->synchronize(behind.get()));
      }
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(sweep_cuda_ipc(), 0u);
  dead = false;
  for (const auto& violation : machine.take_violations()) ADD_FAILURE() << violation;
}

TEST_F(CudaIpcTest, ABuildWithoutKernelsGathersButDoesNotReduce) {
  join(1, nullptr);
  std::vector<float> in{1}, out(1);
  ranks_[0]->begin({operation(Kind::kAllGather, 0, in, out, 1)});
  finish();
  EXPECT_EQ(out, in);
  ranks_[0]->begin({operation(Kind::kAllReduce, 0, in, out, 1)});
  const auto refused = ranks_[0]->advance();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "NoKernels");
  EXPECT_TRUE(device_->synchronize(streams_[0].get()));  // it has begun to copy the input
}

TEST_F(CudaIpcTest, MoreRanksThanTheSegmentHasAreRefused) {
  const auto refused = IpcComm::join(device_, "/shoal-devices-test-many", IpcSegment::kMaxRanks + 1, 0, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::kUnimplemented);
}

}  // namespace
}  // namespace shoal::runtime
