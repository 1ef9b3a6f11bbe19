// NcclCommunicator beyond the conformance suite: devices, streams, the faults of NCCL, and what a group leaves behind.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/device/fake/fake_cuda.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/choice/make_communicator.h"
#include "runtime/transport/conformance/test_host.h"
#include "runtime/transport/nccl/fake/fake_nccl.h"
#include "runtime/transport/nccl/nccl_communicator.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

class NcclTest : public testing::Test {
 protected:
  ~NcclTest() override {
    EXPECT_EQ(nccl_.num_communicators(), 0u);
    EXPECT_EQ(cuda_.num_streams(), 0u);
    EXPECT_EQ(cuda_.num_events(), 0u);
    EXPECT_EQ(cuda_.num_allocations(), 0u);
    for (const auto& violation : cuda_.take_violations()) ADD_FAILURE() << violation;
    for (const auto& violation : nccl_.take_violations()) ADD_FAILURE() << violation;
  }

  Result<std::shared_ptr<Communicator>> join(int rank, int world_size, NcclTransport transport, const std::string& name = "group") {
    CommunicatorRequest request;
    request.rank = rank;
    request.world_size = world_size;
    request.name = name;
    request.timeout = 60s;
    if (rank == 0) request.interrupted = interrupted_;
    transport.cuda = &cuda_.api();
    if (transport.api == nullptr) transport.api = &nccl_.api();
    request.nccl = std::move(transport);
    auto& memory = request.memory.emplace();
    memory.spins = false;
    memory.open = [this](const std::string& name, std::size_t bytes, int) { return host_.open(name, bytes); };
    return make_communicator(std::move(request), clock_);
  }
  // Runs `program` on every rank, with its result of join() and its device.
  using Program = std::function<void(Result<std::shared_ptr<Communicator>>, int rank)>;
  void run(int world_size, const Program& program, const std::function<NcclTransport(int)>& transport = own_device,
           const std::string& name = "group") {
    std::vector<std::thread> ranks;
    for (int r = 0; r < world_size; ++r) ranks.emplace_back([&, r] { program(join(r, world_size, transport(r), name), r); });
    for (auto& rank : ranks) rank.join();
  }
  static NcclTransport own_device(int rank) { return {.device = rank, .current_stream = nullptr}; }

  // Floats on a device.
  struct Tensor {
    Tensor(const Communicator& c, std::vector<float> values)
        : Tensor(dynamic_cast<const NcclCommunicator&>(c).device(), std::move(values)) {}
    Tensor(const Device& on, std::vector<float> values) : device(on), memory(on.allocate(values.size() * sizeof(float)).value()) {
      copy(memory.get().data(), values.data());
    }
    std::vector<float> read() const {
      std::vector<float> out(memory.get().size() / sizeof(float));
      copy(out.data(), memory.get().data());
      return out;
    }
    void copy(void* to, const void* from) const {
      const auto stream = device.make_stream().value();
      ASSERT_TRUE(device.copy(to, from, memory.get().size(), stream.get()));
      ASSERT_TRUE(device.synchronize(stream.get()));
    }
    std::span<std::byte> bytes() const { return memory.get(); }

    const Device& device;
    const DeviceMemory memory;
  };
  static WorkPtr sum(Communicator& c, const Tensor& t, Call call = {}) {
    return c.all_reduce(t.bytes(), t.bytes(), DType::kFloat32, ReduceOp::kSum, std::move(call));
  }

  std::function<bool()> interrupted_;
  FakeCuda& cuda_ = FakeCuda::machine();
  FakeNccl& nccl_ = FakeNccl::machine();
  Loop loop_;
  std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  TestHost host_;
};

// ---- setup ----

TEST_F(NcclTest, RanksWithOneDeviceAreRefusedByName) {
  run(
      2,
      [](auto joined, int) {
        ASSERT_FALSE(joined);
        EXPECT_EQ(joined.error().code(), Code::kInvalidArgument);
        EXPECT_EQ(joined.error().reason(), "DeviceShared");
        EXPECT_NE(joined.error().message().find("ranks 0 and 1 have the same device"), std::string::npos) << joined.error().to_string();
      },
      [](int) { return own_device(5); });
}

TEST_F(NcclTest, ARankWithoutItsDeviceFailsTheOthersAtOnce) {
  run(
      2, [](auto joined, int) { EXPECT_NE(joined.error().message().find("there is no device 99"), std::string::npos); },
      [](int rank) { return own_device(rank == 1 ? 99 : 0); });
}

TEST_F(NcclTest, ConnectingHasATimeLimit) {
  nccl_.hang_connecting(true);
  run(
      2,
      [](auto joined, int) {
        ASSERT_FALSE(joined);
        EXPECT_EQ(joined.error().code(), Code::kDeadlineExceeded);
        EXPECT_EQ(joined.error().reason(), "Late");
      },
      [](int rank) {
        auto out = own_device(rank);
        out.connect_timeout = 100ms;
        return out;
      });
  nccl_.hang_connecting(false);
}

TEST_F(NcclTest, ASignalWhileNcclConnectsIsTheCallersAndNamesItsRankToTheOthers) {
  nccl_.hang_connecting(true);
  interrupted_ = [] { return true; };
  run(2, [](auto joined, int rank) {
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().reason(), rank == 0 ? "Interrupted" : "RankInterrupted") << joined.error().to_string();
    EXPECT_EQ(joined.error().message().find("rank 0") != std::string::npos, rank == 1) << joined.error().to_string();
  });
  nccl_.hang_connecting(false);
}

TEST_F(NcclTest, WhatNcclRefusesAtTheStartIsAnError) {
  nccl_.fail_next("ncclGetUniqueId", nccl::kSystemError);
  run(2, [](auto joined, int) {
    EXPECT_EQ(joined.error().code(), Code::kUnavailable);
    EXPECT_EQ(joined.error().reason(), "Nccl");
    EXPECT_NE(joined.error().message().find("failed in NCCL 2.27.3"), std::string::npos);
  });
}

// ---- buffers and streams ----

TEST_F(NcclTest, MemoryOfTheHostIsRefusedWithoutEffect) {
  run(2, [](auto joined, int rank) {
    auto& c = **joined;
    std::vector<float> host(4);
    const auto bytes = std::as_writable_bytes(std::span(host));
    const auto refused = c.all_reduce(bytes, bytes, DType::kFloat32, ReduceOp::kSum, {})->wait();
    EXPECT_EQ(refused.error().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.error().message().find("the input lies in memory of the host"), std::string::npos);
    EXPECT_FALSE(c.send(bytes, 1 - rank, DType::kFloat32, 0, {})->wait());
    EXPECT_FALSE(c.failed());
    EXPECT_TRUE(c.barrier({})->wait());
  });
}

TEST_F(NcclTest, GathersOfAUnitAreOneOperationInPlace) {
  run(3, [](auto joined, int rank) {
    auto& c = dynamic_cast<NcclCommunicator&>(**joined);
    const auto r = static_cast<float>(rank);
    const Tensor even(c, {r, r}), uneven(c, std::vector<float>(static_cast<std::size_t>(rank), r));
    const Tensor whole_even(c, std::vector<float>(6)), whole_uneven(c, std::vector<float>(3));
    const std::vector<NcclCommunicator::Gather> gathers{{even.bytes(), whole_even.bytes(), {8, 8, 8}},
                                                        {uneven.bytes(), whole_uneven.bytes(), {0, 4, 8}}};
    ASSERT_TRUE(c.all_gather_each(gathers, DType::kFloat32, {})->wait());
    EXPECT_EQ(whole_even.read(), (std::vector<float>{0, 0, 1, 1, 2, 2}));
    EXPECT_EQ(whole_uneven.read(), (std::vector<float>{1, 2, 2}));

    auto wrong = gathers;
    wrong[1].counts = {4, 4, 8};
    EXPECT_EQ(c.all_gather_each(wrong, DType::kFloat32, {})->wait().error().code(), Code::kInvalidArgument);
    ASSERT_TRUE(c.barrier({})->wait());
  });
}

TEST_F(NcclTest, AnOperationWaitsForTheStreamOfItsCallerWhichMayWaitForIt) {
  std::array<std::promise<void>, 2> released;
  std::array<Stream, 2> streams;
  for (int r = 0; r < 2; ++r) streams[static_cast<std::size_t>(r)] = Device::open(cuda_.api(), r).value()->make_stream().value();
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = dynamic_cast<NcclCommunicator&>(**joined);
        const auto r = static_cast<std::size_t>(rank);
        const Tensor t(c, {0}), copy(c, {0});
        auto* const value = reinterpret_cast<float*>(t.bytes().data());
        cuda_.enqueue(streams[r].get(), [&, value] {
          released[r].get_future().wait();
          *value = 5;  // a kernel that computes the gradient
        });
        const auto work = sum(c, t);
        ASSERT_TRUE(c.order_after(*work, streams[r].get()));
        ASSERT_TRUE(c.device().copy(copy.bytes().data(), t.bytes().data(), 4, streams[r].get()));
        for (int i = 0; i < 10'000; ++i) ASSERT_FALSE(work->done());  // time enough for an operation that does not wait
        released[r].set_value();
        ASSERT_TRUE(c.device().synchronize(streams[r].get()));
        EXPECT_EQ(*reinterpret_cast<const float*>(copy.bytes().data()), 10);
        ASSERT_TRUE(work->wait());
        EXPECT_EQ(c.order_after(*failed_work(internal("x")), streams[r].get()).error().code(), Code::kInternal);
      },
      [&](int rank) {
        return NcclTransport{.device = rank, .current_stream = [&, rank] { return streams[static_cast<std::size_t>(rank)].get(); }};
      });
}

TEST_F(NcclTest, ASteadyStateMakesNoEventsStreamsOrMemory) {
  std::atomic<int> came{0};
  run(2, [&](auto joined, int) {
    auto& c = **joined;
    const Tensor t(c, std::vector<float>(64, 1));
    const auto steps = [&](int num) {
      for (int i = 0; i < num; ++i) {
        const auto first = sum(c, t), second = sum(c, t);
        ASSERT_TRUE(first->wait());
        ASSERT_TRUE(second->wait());
      }
      ASSERT_TRUE(c.barrier({})->wait());
    };
    steps(3);
    const auto events = cuda_.num_events(), memory = cuda_.num_allocations(), streams = cuda_.num_streams();
    for (++came; came < 2;) std::this_thread::yield();  // both have counted
    steps(20);
    EXPECT_EQ(cuda_.num_events(), events);
    EXPECT_EQ(cuda_.num_allocations(), memory);
    EXPECT_EQ(cuda_.num_streams(), streams);
    for (++came; came < 4;) std::this_thread::yield();
  });
}

// ---- faults ----

TEST_F(NcclTest, AnErrorOfOneDeviceEndsTheGroupWhichIsFormedAgain) {
  run(3, [&](auto joined, int rank) {
    auto c = *joined;
    ASSERT_TRUE(c->barrier({})->wait());
    const Tensor t(*c, {1});
    if (rank == 1) {
      nccl_.break_device(1, nccl::kRemoteError);
      EXPECT_FALSE(sum(*c, t)->wait());
    } else {
      // The first operation may have been complete before.
      while (sum(*c, t)->wait()) {
      }
    }
    EXPECT_EQ(c->failed()->code(), Code::kUnavailable);
    EXPECT_EQ(c->failed()->reason(), "Nccl");
    const auto next = c->reform().value();
    c.reset();
    EXPECT_EQ(next->generation(), 2u);
    EXPECT_EQ(next->world_size(), 3);
    const Tensor again(*next, {1});
    ASSERT_TRUE(sum(*next, again)->wait());
    EXPECT_EQ(again.read()[0], 3);
  });
}

TEST_F(NcclTest, ARefusedCallEndsItsGroupOfCalls) {
  nccl_.fail_next("ncclAllReduce", nccl::kInternalError);
  run(2, [&](auto joined, int) {
    auto& c = **joined;
    const Tensor t(c, {1});
    EXPECT_EQ(sum(c, t)->wait().error().reason(), "Nccl");
    EXPECT_FALSE(c.barrier({})->wait());
  });
}

TEST_F(NcclTest, ARankWhoseDeviceRefusesACallFailsTheOthers) {
  run(2, [&](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, {1});
    if (rank == 1) {
      cuda_.fail_next("event", cuda::kIllegalAddress);
      EXPECT_EQ(sum(c, t)->wait().error().reason(), "DeviceFailed");
    }
    EXPECT_EQ(c.barrier({})->wait().error().reason(), "DeviceFailed");
  });
}

TEST_F(NcclTest, AWaitEndsOnASignalAndTheOperationGoesOn) {
  std::atomic<bool> interrupted{false};
  interrupted_ = [&] { return interrupted.exchange(false); };
  run(2, [&](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, {1});
    if (rank == 0) {
      const auto work = sum(c, t);
      interrupted = true;
      EXPECT_EQ(work->wait().error().reason(), "Interrupted");
      ASSERT_TRUE(c.send(t.bytes(), 1, DType::kFloat32, 0, {})->wait());  // lets the other rank go on
      ASSERT_TRUE(work->wait());
    } else {
      const Tensor go(c, {0});
      ASSERT_TRUE(c.receive(go.bytes(), 0, DType::kFloat32, 0, {})->wait());
      ASSERT_TRUE(sum(c, t)->wait());
    }
  });
}

TEST_F(NcclTest, AHungDeviceIsLateAndItsBuffersAreFree) {
  run(2, [&](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, {1}), message(c, {1});
    ASSERT_TRUE(c.barrier({})->wait());
    nccl_.hang_operations(true);
    Call call;
    call.timeout = 200ms;
    const auto ended = rank == 0 ? c.send(message.bytes(), 1, DType::kFloat32, 0, call)->wait()
                                 : c.receive(message.bytes(), 0, DType::kFloat32, 0, call)->wait();
    EXPECT_EQ(ended.error().code(), Code::kDeadlineExceeded) << ended.error().to_string();
    EXPECT_EQ(ended.error().reason(), "Late");
    EXPECT_EQ(sum(c, t)->wait().error().reason(), "Late");
  });
  nccl_.hang_operations(false);
}

TEST_F(NcclTest, ARankThatIsLostWhileItsDataAreOnTheWayIsNamed) {
  std::promise<void> on_the_way;
  run(2, [&](auto joined, int rank) {
    auto& c = dynamic_cast<NcclCommunicator&>(**joined);
    const Tensor t(c, {1});
    ASSERT_TRUE(c.barrier({})->wait());
    nccl_.hang_operations(true);
    if (rank == 1) {
      const auto sent = c.send(t.bytes(), 0, DType::kFloat32, 0, {});
      on_the_way.get_future().wait();
      return host_.mark_gone("group/1", 1, "killed by SIGKILL");
    }
    const auto stream = c.device().make_stream().value();
    const auto received = c.receive(t.bytes(), 1, DType::kFloat32, 0, {});
    ASSERT_TRUE(c.order_after(*received, stream.get()));
    on_the_way.set_value();
    const auto ended = received->wait();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code(), Code::kUnavailable) << ended.error().to_string();
    EXPECT_EQ(ended.error().reason(), "ActorDied");
    EXPECT_NE(ended.error().message().find("rank 1 has left or died"), std::string::npos) << ended.error().to_string();
  });
  nccl_.hang_operations(false);
}

TEST_F(NcclTest, WhatEveryRankHasBegunEndsWellAlsoAfterAnAbort) {
  run(
      2,
      [](auto joined, int rank) {
        auto c = *joined;
        for (int i = 0; i < 50; ++i) {
          const Tensor t(*c, {1});
          const auto ended = sum(*c, t)->wait();
          EXPECT_TRUE(ended) << ended.error().to_string();
          if (rank == 1) c->abort(cancelled("enough"));
          c = c->reform().value();
        }
      },
      [](int rank) {
        auto out = own_device(rank);
        out.in_flight = 10s;
        return out;
      });
}

TEST_F(NcclTest, GenerationsLeaveNothingBehind) {
  run(2, [](auto joined, int) {
    auto c = *joined;
    for (std::uint64_t generation = 1; generation < 5; ++generation) {
      EXPECT_EQ(c->generation(), generation);
      {
        const Tensor t(*c, {1});
        ASSERT_TRUE(sum(*c, t)->wait());
        EXPECT_EQ(t.read()[0], 2);
      }
      c = c->reform().value();
    }
  });
}

// A clock whose time a test moves on.
class MovedClock final : public Clock {
 public:
  explicit MovedClock(std::shared_ptr<Clock> clock) : clock_(std::move(clock)) {}
  TimePoint now() const override {
    ++num_looks;
    return clock_->now() + by.load();
  }
  std::int64_t unix_millis() const override { return clock_->unix_millis(); }
  Timer after(Duration delay, std::function<void()> fn) override { return clock_->after(delay, std::move(fn)); }

  mutable std::atomic<int> num_looks{0};
  std::atomic<Duration> by{Duration{}};

 private:
  const std::shared_ptr<Clock> clock_;
};

TEST_F(NcclTest, AnOperationOfAFailedGroupEndsOnceTheDeviceUsesItsBuffersNoMore) {
  const auto moved = std::make_shared<MovedClock>(clock_);
  clock_ = moved;
  const auto device = Device::open(cuda_.api(), 0).value();
  const auto stream = device->make_stream().value();
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = **joined;
        const Tensor t(c, {1});
        if (rank == 1) {
          EXPECT_FALSE(sum(c, t)->wait());
          return;
        }
        std::promise<void> released;
        cuda_.enqueue(stream.get(), [&] { released.get_future().wait(); });
        const auto work = sum(c, t);
        c.abort(cancelled("enough").with_reason("Enough"));
        while (nccl_.num_communicators() > 0) std::this_thread::yield();
        for (int i = 0; i < 200; ++i) {
          const int seen = moved->num_looks;
          moved->by = (i + 1) * Duration(1min);
          while (moved->num_looks < seen + 5 && !work->done()) std::this_thread::yield();
        }
        EXPECT_FALSE(work->done());
        released.set_value();
        EXPECT_EQ(work->wait().error().reason(), "Enough");
      },
      [&](int rank) {
        auto out = own_device(rank);
        if (rank == 0) out.current_stream = [&] { return stream.get(); };
        return out;
      });
}

// ---- one order of issue ----

TEST_F(NcclTest, OrderingAStreamBehindAMessageEndsOnASignalAndTheMessageGoesOn) {
  std::atomic<bool> interrupted{false};
  interrupted_ = [&] { return interrupted.exchange(false); };
  std::promise<void> ended;
  run(2, [&](auto joined, int rank) {
    auto& c = dynamic_cast<NcclCommunicator&>(**joined);
    const Tensor t(c, {static_cast<float>(rank)});
    if (rank == 1) {
      ended.get_future().wait();
      EXPECT_TRUE(c.send(t.bytes(), 0, DType::kFloat32, 0, {})->wait());
      return;
    }
    const auto stream = c.device().make_stream().value();
    const auto received = c.receive(t.bytes(), 1, DType::kFloat32, 0, {});
    interrupted = true;
    const auto ordered = c.order_after(*received, stream.get());
    ended.set_value();
    ASSERT_FALSE(ordered);
    EXPECT_EQ(ordered.error().code(), Code::kCancelled);
    EXPECT_EQ(ordered.error().reason(), "Interrupted");
    EXPECT_TRUE(c.order_after(*received, stream.get()));
    EXPECT_TRUE(received->wait());
    EXPECT_EQ(t.read()[0], 1);
  });
}

TEST_F(NcclTest, OrderingAStreamHasALimitAlsoIfTheWatchingThreadIsStuck) {
  std::promise<void> ended;
  run(2, [&](auto joined, int rank) {
    auto& c = dynamic_cast<NcclCommunicator&>(**joined);
    const Tensor t(c, {1});
    ASSERT_TRUE(c.barrier({})->wait());
    nccl_.hold_init(true);
    if (rank == 1) {
      const auto sent = c.send(t.bytes(), 0, DType::kFloat32, 0, {});
      ended.get_future().wait();
      (void)sent->wait();
      return;
    }
    const auto stream = c.device().make_stream().value();
    Call call;
    call.timeout = 200ms;
    const auto received = c.receive(t.bytes(), 1, DType::kFloat32, 0, call);
    const auto ordered = c.order_after(*received, stream.get());
    nccl_.hold_init(false);
    ended.set_value();
    (void)received->wait();
    ASSERT_FALSE(ordered);
    EXPECT_EQ(ordered.error().code(), Code::kDeadlineExceeded);
    EXPECT_EQ(ordered.error().reason(), "Late");
  });
}

TEST_F(NcclTest, ACallThatNcclDoesNotPutOnTheStreamEndsWithItsLimitOrASignal) {
  for (const bool signal : {true, false}) {
    std::atomic<bool> interrupted{false};
    interrupted_ = [&] { return interrupted.load(); };
    run(
        2,
        [&](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          if (rank == 1) {
            while (!c.failed()) std::this_thread::yield();
            EXPECT_EQ(c.failed()->reason(), signal ? "RankInterrupted" : "Late") << c.failed()->to_string();
            EXPECT_NE(c.failed()->message().find("rank 0"), std::string::npos) << c.failed()->to_string();
            return;
          }
          nccl_.hang_launches(true);
          Call call;
          call.timeout = signal ? 60s : 100ms;
          interrupted = signal;
          const auto ended = sum(c, t, call)->wait();
          nccl_.hang_launches(false);
          ASSERT_FALSE(ended);
          EXPECT_EQ(ended.error().reason(), signal ? "RankInterrupted" : "Late") << ended.error().to_string();
        },
        own_device, signal ? "interrupted" : "late");
    // The device's turn is free again.
    interrupted_ = nullptr;
    run(
        2,
        [&](auto joined, int) {
          const Tensor t(**joined, {1});
          EXPECT_TRUE(sum(**joined, t)->wait());
        },
        own_device, signal ? "after a signal" : "after a limit");
  }
}

// Two threads of a process make the first calls of two groups, in one order on rank 0 and in the other on rank 1.
TEST_F(NcclTest, FirstCallsOfTwoThreadsInOppositeOrdersConnect) {
  nccl_.connect_with_first_calls(true);
  Meeting joined(4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    for (int g = 0; g < 2; ++g) {
      threads.emplace_back([&, r, g] {
        const auto c = join(r, 2, own_device(r), "group" + std::to_string(g)).value();
        const Tensor t(*c, {1});
        joined.meet();
        while (r != g && nccl_.num_in_progress(r) == 0) std::this_thread::yield();  // the process's other thread was first
        Call call;
        call.timeout = 20s;
        const auto ended = sum(*c, t, call)->wait();
        EXPECT_TRUE(ended) << ended.error().to_string();
      });
    }
  }
  for (auto& thread : threads) thread.join();
  nccl_.connect_with_first_calls(false);
}

TEST_F(NcclTest, AThreadThatIsStuckInACallDoesNotHoldUpTheEndOfItsGroup) {
  run(2, [&](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, {1});
    ASSERT_TRUE(c.barrier({})->wait());
    if (rank == 0) {
      nccl_.block_calls(0);
      const auto ended = sum(c, t)->wait();
      ASSERT_FALSE(ended);
      EXPECT_EQ(ended.error().reason(), "Enough") << ended.error().to_string();
    } else {
      while (nccl_.num_blocked() == 0) std::this_thread::yield();
      c.abort(cancelled("enough").with_reason("Enough"));
    }
  });
  nccl_.block_calls(-1);
}

TEST_F(NcclTest, AThreadThatWaitsForTheDeviceSeesItsOwnGroupFail) {
  std::promise<void> waits, ended;
  std::atomic<bool> submits{false};
  interrupted_ = [&] {  // polled by the thread that waits for its turn
    if (submits.exchange(false)) waits.set_value();
    return false;
  };
  std::thread stuck([&] {
    run(
        2,
        [&](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          if (rank == 0) {
            nccl_.block_calls(0);
            EXPECT_FALSE(sum(c, t)->wait());
          } else {
            ended.get_future().wait();
            c.abort(cancelled("enough"));
          }
        },
        [](int rank) { return own_device(rank); }, "stuck");
  });
  while (nccl_.num_blocked() == 0) std::this_thread::yield();
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = **joined;
        const Tensor t(c, {1});
        if (rank == 0) {
          submits = true;
          const auto result = sum(c, t)->wait();
          ended.set_value();
          ASSERT_FALSE(result);
          EXPECT_EQ(result.error().reason(), "Other") << result.error().to_string();
        } else {
          waits.get_future().wait();
          c.abort(cancelled("another cause").with_reason("Other"));
        }
      },
      own_device, "waiting");
  stuck.join();
  nccl_.block_calls(-1);
}

// A thread waits for the device, which a stuck group has, when its own group fails. The end of that group waits for a stream.
TEST_F(NcclTest, AGroupWhoseEndWaitsForTheDeviceLeavesItToOtherGroups) {
  const auto stream = Device::open(cuda_.api(), 0).value()->make_stream().value();
  std::promise<void> begun, waits, over, released;
  std::atomic<bool> submits{false};
  interrupted_ = [&] {  // polled by a thread that waits for its turn
    if (submits.exchange(false)) waits.set_value();
    return false;
  };
  cuda_.enqueue(stream.get(), [&] { released.get_future().wait(); });
  std::thread ending([&] {
    run(
        2,
        [&](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          const auto first = sum(c, t);
          if (rank == 1) {
            waits.get_future().wait();
            c.abort(cancelled("enough"));
          } else {
            begun.set_value();
            while (nccl_.num_blocked() == 0) std::this_thread::yield();
            submits = true;
            EXPECT_FALSE(sum(c, t)->wait());
          }
          EXPECT_FALSE(first->wait());
        },
        [&](int rank) {
          auto out = own_device(rank);
          if (rank == 0) out.current_stream = [&] { return stream.get(); };
          return out;
        },
        "ending");
  });
  begun.get_future().wait();
  nccl_.block_calls(0);
  std::thread stuck([&] {
    run(
        2,
        [&](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          if (rank == 1) {
            over.get_future().wait();
            c.abort(cancelled("enough"));
          } else {
            EXPECT_FALSE(sum(c, t)->wait());
          }
        },
        own_device, "stuck");
  });
  while (nccl_.num_blocked() == 0) std::this_thread::yield();
  nccl_.block_calls(-1);
  while (nccl_.num_communicators() > 2) std::this_thread::yield();  // until the first group's are aborted
  over.set_value();
  while (nccl_.num_blocked() > 0) std::this_thread::yield();
  run(
      2,
      [&](auto joined, int) {
        auto& c = **joined;
        const Tensor t(c, {1});
        Call call;
        call.timeout = 20s;
        EXPECT_TRUE(sum(c, t, call)->wait());
      },
      own_device, "other");
  released.set_value();
  ending.join();
  stuck.join();
}

TEST_F(NcclTest, ASignalBeforeTheFirstCallConcernsItsCallerAlone) {
  std::promise<void> over;
  std::atomic<bool> interrupted{false};
  interrupted_ = [&] { return interrupted.exchange(false); };
  nccl_.block_calls(0);
  std::thread stuck([&] {
    run(
        2,
        [&](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          if (rank == 1) {
            over.get_future().wait();
            c.abort(cancelled("enough"));
          } else {
            EXPECT_FALSE(sum(c, t)->wait());
          }
        },
        own_device, "stuck");
  });
  while (nccl_.num_blocked() == 0) std::this_thread::yield();
  nccl_.block_calls(-1);
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = **joined;
        const Tensor t(c, {1});
        if (rank == 0) {
          interrupted = true;
          EXPECT_EQ(sum(c, t)->wait().error().reason(), "Interrupted");
          EXPECT_FALSE(c.failed());
          over.set_value();
        }
        EXPECT_TRUE(sum(c, t)->wait());
        EXPECT_EQ(t.read()[0], 2);
      },
      own_device, "interrupted");
  stuck.join();
}

TEST_F(NcclTest, CallsThatDifferAreReportedWhileNcclWaitsForTheOtherRank) {
  nccl_.hang_launches(true);
  run(2, [&](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, {1});
    const auto ended = (rank == 0 ? sum(c, t) : c.broadcast(t.bytes(), 0, DType::kFloat32, {}))->wait();
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
    for (const auto* const call : {"all_reduce", "broadcast"}) EXPECT_NE(ended.error().message().find(call), std::string::npos);
  });
  nccl_.hang_launches(false);
}

// Four ranks as a mesh of 2x2, each with a group of its shards, one of its replicas, and the user's own group of all.
class IssueOrderTest : public NcclTest {
 protected:
  static constexpr int kRanks = 4;
  struct Mesh {
    int rank;
    std::shared_ptr<Communicator> shards, replicas, all;
    std::vector<std::unique_ptr<Tensor>> tensors;
  };
  struct Step {
    enum class Kind { kShards, kReplicas, kAll, kUp, kDown } kind;  // sums of a group, or messages between a row's two ranks
    std::size_t numel;
  };
  static std::vector<Step> program(std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<Step> out(10);
    for (auto& step : out) step = {static_cast<Step::Kind>(random() % 5), 1 + random() % kNumel};
    return out;
  }

  // Each rank runs `program` with each seed.
  void run_mesh(std::uint32_t num_seeds, const NcclApi* api, const std::function<void(std::uint32_t seed, Mesh&)>& steps) {
    Meeting together(kRanks);
    std::vector<std::thread> ranks;
    for (int r = 0; r < kRanks; ++r) {
      ranks.emplace_back([&, r] {
        const NcclTransport transport{.device = r, .current_stream = nullptr, .api = api};
        const auto row = std::to_string(r / 2), column = std::to_string(r % 2);
        Mesh mesh{r,
                  join(r % 2, 2, transport, "shards" + row).value(),
                  join(r / 2, 2, transport, "replicas" + column).value(),
                  join(r, kRanks, transport, "all").value(),
                  {}};
        for (int i = 0; i < 10; ++i) mesh.tensors.push_back(std::make_unique<Tensor>(*mesh.all, std::vector<float>(kNumel)));
        threads_[static_cast<std::size_t>(r)] = std::this_thread::get_id();
        for (const auto kind : {Step::Kind::kUp, Step::Kind::kDown}) ASSERT_TRUE(begin(mesh, {kind, 1}, 0)->wait());
        together.meet();
        if (r == 0) nccl_.check_order(true);
        together.meet();
        for (std::uint32_t seed = 0; seed < num_seeds; ++seed) {
          if (r == 0) nccl_.launch_with_look(static_cast<int>(1 + seed % 4));
          steps(seed, mesh);
          together.meet();
          if (r == 0) take_issues();
          together.meet();
        }
        if (r == 0) nccl_.check_order(false);
      });
    }
    for (auto& rank : ranks) rank.join();
    nccl_.launch_with_look(2);
  }
  static WorkPtr begin(Mesh& mesh, const Step& step, std::size_t index) {
    const auto bytes = mesh.tensors[index]->bytes().first(step.numel * sizeof(float));
    const bool sends = (mesh.rank % 2 == 0) == (step.kind == Step::Kind::kUp);
    switch (step.kind) {
      case Step::Kind::kShards:
        return mesh.shards->all_reduce(bytes, bytes, DType::kFloat32, ReduceOp::kSum, {});
      case Step::Kind::kReplicas:
        return mesh.replicas->all_reduce(bytes, bytes, DType::kFloat32, ReduceOp::kSum, {});
      case Step::Kind::kAll:
        return mesh.all->all_reduce(bytes, bytes, DType::kFloat32, ReduceOp::kSum, {});
      default:
        return sends ? mesh.shards->send(bytes, 1 - mesh.rank % 2, DType::kFloat32, 0, {})
                     : mesh.shards->receive(bytes, 1 - mesh.rank % 2, DType::kFloat32, 0, {});
    }
  }
  static float result(const Step& step, int rank) {
    const auto r = static_cast<float>(rank);
    switch (step.kind) {
      case Step::Kind::kShards:
        return rank < 2 ? 1 : 5;
      case Step::Kind::kReplicas:
        return rank % 2 == 0 ? 2 : 4;
      case Step::Kind::kAll:
        return 6;
      default:
        return r - static_cast<float>(step.kind == Step::Kind::kUp ? rank % 2 : rank % 2 - 1);
    }
  }
  // A rank waits at places of its own.
  static void run_seed(std::uint32_t seed, Mesh& mesh) {
    std::mt19937 own(seed * kRanks + static_cast<std::uint32_t>(mesh.rank) + 1);
    const auto steps = program(seed);
    std::vector<WorkPtr> works;
    for (auto& tensor : mesh.tensors) {
      auto* const values = reinterpret_cast<float*>(tensor->bytes().data());
      std::fill(values, values + kNumel, static_cast<float>(mesh.rank));
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (auto yields = own() % 4; yields > 0; --yields) std::this_thread::yield();
      works.push_back(begin(mesh, steps[i], i));
      if (own() % 5 != 0) continue;
      const auto ended = works[own() % works.size()]->wait();
      ASSERT_TRUE(ended) << ended.error().to_string();
    }
    for (const auto& work : works) {
      const auto ended = work->wait();
      ASSERT_TRUE(ended) << ended.error().to_string();
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const auto* const values = reinterpret_cast<const float*>(mesh.tensors[i]->bytes().data());
      ASSERT_EQ(values[steps[i].numel - 1], result(steps[i], mesh.rank)) << "seed " << seed << ", step " << i;
    }
  }
  void take_issues() {
    for (const auto& issue : nccl_.take_issues()) {
      ++num_issues_;
      num_of_others_ += issue.thread == threads_[static_cast<std::size_t>(issue.device)] ? 0 : 1;
    }
  }

  static constexpr std::size_t kNumel = 64;
  std::array<std::thread::id, kRanks> threads_;
  std::size_t num_issues_ = 0, num_of_others_ = 0;  // by all threads; by others than the programs'
};

TEST_F(IssueOrderTest, GroupsAndMessagesAreIssuedByTheProgramInItsOrder) {
  run_mesh(200, nullptr, run_seed);
  EXPECT_EQ(num_issues_, 200u * kRanks * 10);
  EXPECT_EQ(num_of_others_, 0u);
}

TEST_F(NcclTest, ThreadsOfAProgramTakeTurnsOnADevice) {
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    for (const auto* const group : {"first", "second"}) {
      ranks.emplace_back([&, r, group] {
        const auto c = join(r, 2, own_device(r), group).value();
        const Tensor t(*c, {1});
        for (int i = 0; i < 100; ++i) ASSERT_TRUE(sum(*c, t)->wait());
        EXPECT_TRUE(c->barrier({})->wait());
      });
    }
  }
  for (auto& rank : ranks) rank.join();
}

// A planted fault: each group's watching thread issues, as in a transport whose polls issue.
TEST_F(IssueOrderTest, IssuesOfTheWatchingThreadsAreNoticed) {
  auto api = nccl_.api();
  api.issues_in_polls = true;
  run_mesh(20, &api, run_seed);
  EXPECT_EQ(num_issues_, 20u * kRanks * 10);
  EXPECT_EQ(num_of_others_, num_issues_);
  const auto violations = nccl_.take_violations();
  EXPECT_TRUE(
      std::any_of(violations.begin(), violations.end(), [](const auto& v) { return v.find("are on the stream") != std::string::npos; }));
}

TEST_F(IssueOrderTest, AnotherOrderOnOneRankIsNoticed) {
  run_mesh(1, nullptr, [](std::uint32_t, Mesh& mesh) {
    std::vector<Step> steps{{Step::Kind::kShards, 1}, {Step::Kind::kAll, 1}};
    if (mesh.rank == 1) std::swap(steps[0], steps[1]);
    const auto first = begin(mesh, steps[0], 0), second = begin(mesh, steps[1], 1);
    ASSERT_TRUE(first->wait());
    ASSERT_TRUE(second->wait());
  });
  const auto violations = nccl_.take_violations();
  ASSERT_FALSE(violations.empty());
  for (const auto& violation : violations) EXPECT_NE(violation.find("has issued"), std::string::npos) << violation;
}

// A ring of first messages, each longer than what NCCL buffers, ends although every rank sends before it receives.
TEST_F(NcclTest, ARingOfFirstMessagesEnds) {
  run(3, [](auto joined, int rank) {
    auto& c = **joined;
    const Tensor out(c, std::vector<float>(64, static_cast<float>(rank))), in(c, std::vector<float>(64));
    const auto sent = c.send(out.bytes(), (rank + 1) % 3, DType::kFloat32, 0, {});
    const auto received = c.receive(in.bytes(), (rank + 2) % 3, DType::kFloat32, 0, {});
    ASSERT_TRUE(received->wait());
    ASSERT_TRUE(sent->wait());
    EXPECT_EQ(in.read()[0], static_cast<float>((rank + 2) % 3));
    ASSERT_TRUE(c.barrier({})->wait());
  });
}

TEST_F(NcclTest, AMessageThatDoesNotMatchOnAnOpenLaneIsReportedOnBothRanks) {
  run(2, [](auto joined, int rank) {
    auto& c = **joined;
    const Tensor t(c, std::vector<float>(8));
    const auto move = [&](std::size_t bytes, std::uint32_t tag) {
      const auto data = t.bytes().first(bytes);
      return rank == 0 ? c.send(data, 1, DType::kFloat32, tag, {}) : c.receive(data, 0, DType::kFloat32, tag, {});
    };
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(move(32, 0)->wait());
    ASSERT_TRUE(c.barrier({})->wait());
    const auto ended = move(16, rank == 0 ? 7u : 8u)->wait();
    const auto failed = ended ? c.barrier({})->wait() : ended;
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().reason(), "Diverged") << failed.error().to_string();
    EXPECT_NE(failed.error().to_string().find("rank 0 sends 16 bytes of float32 with tag 7"), std::string::npos);
    EXPECT_NE(failed.error().to_string().find("expects 16 bytes of float32 with tag 8"), std::string::npos);
  });
}

// ---- the fake's own strictness ----

class FakeNcclTest : public NcclTest {
 protected:
  // Two communicators of this thread, on devices 0 and `second`.
  void connect(int second) {
    NcclUniqueId id;
    ASSERT_EQ(api_.get_unique_id(&id), nccl::kSuccess);
    for (int rank = 0; rank < 2; ++rank) {
      devices_.push_back(Device::open(cuda_.api(), rank == 0 ? 0 : second).value());
      channels_.push_back(NcclChannel::make(api_, devices_.back()).value());
      ASSERT_TRUE(channels_.back().connect(id, 2, rank));
    }
  }
  NcclStatus call(std::size_t rank, const Tensor& t, CudaStream stream) {
    return api_.all_reduce(t.bytes().data(), t.bytes().data(), 1, nccl::kFloat32, nccl::kSum, channels_[rank].comm(), stream);
  }
  // Waits for a violation, which a stream may be about to record.
  void expect(const std::string& violation) {
    for (std::vector<std::string> all; all.empty() || all.back().find(violation) == std::string::npos;) {
      std::this_thread::yield();
      for (auto& v : nccl_.take_violations()) all.push_back(std::move(v));
    }
  }

  const NcclApi& api_ = nccl_.api();
  std::vector<std::shared_ptr<Device>> devices_;
  std::vector<NcclChannel> channels_;
};

TEST_F(FakeNcclTest, OneDeviceInTwoRanksIsInvalidUsage) {
  connect(0);
  const auto ready = channels_[0].ready();
  EXPECT_EQ(ready.error().code(), Code::kInvalidArgument);
}

TEST_F(FakeNcclTest, CallsToTwoCommunicatorsOfADeviceAtOnceAreNoticed) {
  connect(1);
  connect(1);
  for (auto& channel : channels_) ASSERT_TRUE(channel.ready().value());
  const Tensor t(*devices_[0], {1});
  ASSERT_EQ(call(0, t, channels_[0].stream()), nccl::kInProgress);
  std::thread([&] { EXPECT_EQ(call(2, t, channels_[2].stream()), nccl::kInProgress); }).join();
  expect("are on the stream");
  for (auto& channel : channels_) channel.abort();
}

TEST_F(FakeNcclTest, AGroupThatIsNotEndedIsNoticed) {
  connect(1);
  ASSERT_TRUE(channels_[0].ready().value());
  ASSERT_EQ(api_.group_start(), nccl::kSuccess);
  EXPECT_FALSE(channels_[0].ready());
  expect("ncclGroupEnd is missing");
  ASSERT_EQ(api_.group_end(), nccl::kSuccess);
}

TEST_F(FakeNcclTest, ACallAfterAbortIsNoticed) {
  connect(1);
  const auto comm = channels_[0].comm();
  channels_[0].abort();
  EXPECT_EQ(api_.comm_abort(comm), nccl::kInvalidArgument);
  expect("ncclCommAbort on a communicator that is aborted or destroyed");
}

TEST_F(FakeNcclTest, StreamsAndMemoryOfAnotherDeviceAreNoticed) {
  connect(1);
  for (auto& channel : channels_) ASSERT_TRUE(channel.ready().value());
  const Tensor here(*devices_[0], {1}), there(*devices_[1], {1});
  EXPECT_EQ(call(0, here, channels_[1].stream()), nccl::kInvalidUsage);
  expect("on a stream of device 1, not 0");
  EXPECT_EQ(call(0, there, channels_[0].stream()), nccl::kInvalidArgument);
  expect("not memory of device 0");
}

TEST_F(FakeNcclTest, RanksWhoseCollectivesDifferAreNoticedAndHang) {
  connect(1);
  for (auto& channel : channels_) ASSERT_TRUE(channel.ready().value());
  const Tensor here(*devices_[0], {1}), there(*devices_[1], {1});
  ASSERT_EQ(call(0, here, channels_[0].stream()), nccl::kInProgress);
  EXPECT_EQ(call(0, here, channels_[0].stream()), nccl::kInvalidUsage);
  expect("before the call before it has ended");
  ASSERT_EQ(api_.broadcast(there.bytes().data(), there.bytes().data(), 1, nccl::kFloat32, 0, channels_[1].comm(), channels_[1].stream()),
            nccl::kInProgress);
  for (auto& channel : channels_) {
    while (!channel.ready().value()) {
    }
  }
  const auto event = devices_[0]->make_event().value();
  ASSERT_TRUE(devices_[0]->record(event, channels_[0].stream()));
  expect("collective 0: rank");
  EXPECT_FALSE(devices_[0]->passed(event).value());
  for (auto& channel : channels_) channel.abort();
  ASSERT_TRUE(devices_[0]->synchronize(channels_[0].stream()));
  ASSERT_TRUE(devices_[1]->synchronize(channels_[1].stream()));
}

// ---- the library itself ----

TEST(RealNccl, ItsAbsenceNamesEveryAttempt) {
  if (NcclApi::open("libnccl.so.2")) GTEST_SKIP() << "this machine has NCCL";
  if (std::getenv("SHOAL_NCCL_LIBRARY") != nullptr) GTEST_SKIP() << "SHOAL_NCCL_LIBRARY names one";
  setenv("SHOAL_NCCL_LIBRARY", "/absent/libnccl.so.2", 1);
  const auto loaded = NcclApi::load();
  unsetenv("SHOAL_NCCL_LIBRARY");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code(), Code::kUnavailable);
  EXPECT_EQ(loaded.error().reason(), "NoNccl");
  EXPECT_NE(loaded.error().message().find("libnccl.so.2: "), std::string::npos);
  EXPECT_NE(loaded.error().message().find("/absent/libnccl.so.2: "), std::string::npos) << loaded.error().message();
}

// NCCL loads without a device; its first call that needs one fails.
TEST(RealNccl, ItsSymbolsAreThereAndItNamesTheLackOfADevice) {
  const char* const named = std::getenv("SHOAL_NCCL_LIBRARY");
  auto real = NcclApi::open(named != nullptr ? named : "libnccl.so.2");
  if (!real) {
    GTEST_SKIP() << "no libnccl.so.2 here: pip install nvidia-nccl-cu13 (305 MB) and pass --test_env=SHOAL_NCCL_LIBRARY=.../libnccl.so.2 ("
                 << real.error().message() << ")";
  }
  std::cout << "NCCL " << nccl_version_text(real->version) << " at " << real->path << '\n';
  EXPECT_GE(real->version, nccl::kOldest);
  if (CudaApi::load()) GTEST_SKIP() << "this machine has a device; tests/gpu runs NCCL on it";
  auto channel = NcclChannel::make(*real, Device::open(FakeCuda::machine().api(), 0).value()).value();
  NcclUniqueId id{};
  const auto status = real->get_unique_id(&id);
  Result<void> begun = status == nccl::kSuccess ? channel.connect(id, 1, 0) : fail(from_nccl(*real, status, nullptr, "naming the group"));
  while (begun && channel.connected()) {
    const auto ready = channel.ready();
    ASSERT_TRUE(!ready || !*ready) << "NCCL has connected a rank without a device";
    if (!ready) begun = fail(ready.error());
  }
  ASSERT_FALSE(begun);
  std::cout << begun.error().to_string() << '\n';
  EXPECT_EQ(begun.error().code(), Code::kUnavailable);
  EXPECT_EQ(begun.error().reason(), "Nccl");
}

}  // namespace
}  // namespace shoal::runtime
