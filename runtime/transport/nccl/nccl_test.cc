// NcclCommunicator beyond the conformance suite: devices, streams, the faults of NCCL, and what a group leaves behind.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <future>

#include "runtime/transport/nccl/nccl_fixture.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

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

TEST_F(NcclTest, ACommunicatorsSettingsAreThoseOfTheLoadedNccl) {
  nccl_.take_names();
  for (const int version : {21803, 22602, 22703, 23203}) {
    const std::string name = "for " + nccl_version_text(version);
    auto api = nccl_.api();
    api.version = version;
    nccl_.read_settings_as(version);
    run(
        2,
        [](auto joined, int rank) {
          auto& c = **joined;
          const Tensor t(c, {1});
          const auto message = rank == 0 ? c.send(t.bytes(), 1, DType::kFloat32, 0, {}) : c.receive(t.bytes(), 0, DType::kFloat32, 0, {});
          ASSERT_TRUE(message->wait());
          ASSERT_TRUE(c.barrier({})->wait());
        },
        [&](int rank) {
          auto out = own_device(rank);
          out.api = &api;
          return out;
        },
        name);
    auto names = nccl_.take_names();
    std::ranges::sort(names);
    const std::vector<std::string> all{name, name, "messages 0 to 1", "messages 0 to 1"};
    EXPECT_EQ(names, version >= 22600 ? all : std::vector<std::string>()) << version;
  }
  nccl_.read_settings_as(nccl_.api().version);
}

TEST(NcclFeatures, OneThatTheLoadedNcclLacksIsRefusedWithTheVersionThatHasIt) {
  NcclApi api = FakeNccl::machine().api();
  api.version = 22602;
  api.optional[static_cast<std::size_t>(NcclFeature::kSplit)] = &api;
  EXPECT_TRUE(api.require(NcclFeature::kSplit));
  EXPECT_EQ(api.require(NcclFeature::kWindows).error().message(), "NCCL 2.26.2 lacks symmetric memory, which came with NCCL 2.27.0");
  EXPECT_EQ(api.require(NcclFeature::kZeroCtas).error().code(), Code::kUnimplemented);
  api.version = 22803;
  EXPECT_TRUE(api.require(NcclFeature::kZeroCtas));
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
        for (int i = 0; i < 10'000; ++i) ASSERT_FALSE(work->ended());  // time enough for an operation that does not wait
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
          while (moved->num_looks < seen + 5 && !work->ended()) std::this_thread::yield();
        }
        EXPECT_FALSE(work->ended());
        released.set_value();
        EXPECT_EQ(work->wait().error().reason(), "Enough");
      },
      [&](int rank) {
        auto out = own_device(rank);
        if (rank == 0) out.current_stream = [&] { return stream.get(); };
        return out;
      });
}

// ---- limits and signals ----

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
      ASSERT_TRUE(channels_.back().connect(id, 2, rank, "test"));
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
  Result<void> begun =
      status == nccl::kSuccess ? channel.connect(id, 1, 0, "test") : fail(from_nccl(*real, status, nullptr, "naming the group"));
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
