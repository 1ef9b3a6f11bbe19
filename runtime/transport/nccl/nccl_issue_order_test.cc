// The order in which threads issue to NCCL on a device, and how groups end while a thread is stuck or others wait for the device.
#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <random>

#include "runtime/transport/nccl/nccl_fixture.h"

namespace shoal::runtime {
namespace {

using namespace std::chrono_literals;

class StuckTest : public NcclTest {
 protected:
  // A group of which rank 0 is stuck in a call, and has its device, until end().
  class StuckGroup {
   public:
    explicit StuckGroup(StuckTest& test) : nccl_(test.nccl_) {
      nccl_.block_calls(0);
      ranks_ = std::thread([this, &test] { test.run(2, [this](auto joined, int rank) { call(**joined, rank); }, own_device, "stuck"); });
      while (nccl_.num_blocked() == 0) std::this_thread::yield();
      nccl_.block_calls(-1);  // other groups' calls go on
    }
    ~StuckGroup() {
      end();
      ranks_.join();
    }
    void end() {
      if (!std::exchange(ended_, true)) over_.set_value();
    }

   private:
    void call(Communicator& c, int rank) {
      const Tensor t(c, {1});
      if (rank == 0) {
        EXPECT_FALSE(sum(c, t)->wait());
      } else {
        over_.get_future().wait();
        c.abort(cancelled("enough"));
      }
    }

    FakeNccl& nccl_;
    bool ended_ = false;
    std::promise<void> over_;
    std::thread ranks_;
  };
};

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

TEST_F(StuckTest, AThreadThatWaitsForTheDeviceSeesItsOwnGroupFail) {
  std::promise<void> waits;
  std::atomic<bool> submits{false};
  interrupted_ = [&] {  // polled by the thread that waits for its turn
    if (submits.exchange(false)) waits.set_value();
    return false;
  };
  StuckGroup stuck(*this);
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = **joined;
        const Tensor t(c, {1});
        if (rank == 0) {
          submits = true;
          const auto result = sum(c, t)->wait();
          ASSERT_FALSE(result);
          EXPECT_EQ(result.error().reason(), "Other") << result.error().to_string();
        } else {
          waits.get_future().wait();
          c.abort(cancelled("another cause").with_reason("Other"));
        }
      },
      own_device, "waiting");
}

// A thread waits for the device, which a stuck group has, when its own group fails. The end of that group waits for a stream.
TEST_F(StuckTest, AGroupWhoseEndWaitsForTheDeviceLeavesItToOtherGroups) {
  const auto stream = Device::open(cuda_.api(), 0).value()->make_stream().value();
  std::promise<void> begun, waits, released;
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
  StuckGroup stuck(*this);
  while (nccl_.num_communicators() > 2) std::this_thread::yield();  // until the first group's are aborted
  stuck.end();
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
}

TEST_F(StuckTest, ASignalBeforeTheFirstCallConcernsItsCallerAlone) {
  std::atomic<bool> interrupted{false};
  interrupted_ = [&] { return interrupted.exchange(false); };
  StuckGroup stuck(*this);
  run(
      2,
      [&](auto joined, int rank) {
        auto& c = **joined;
        const Tensor t(c, {1});
        if (rank == 0) {
          interrupted = true;
          EXPECT_EQ(sum(c, t)->wait().error().reason(), "Interrupted");
          EXPECT_FALSE(c.failed());
          stuck.end();
        }
        EXPECT_TRUE(sum(c, t)->wait());
        EXPECT_EQ(t.read()[0], 2);
      },
      own_device, "interrupted");
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
          if (r == 0) nccl_.launch_at_poll(static_cast<int>(1 + seed % 4));
          steps(seed, mesh);
          together.meet();
          if (r == 0) take_issues();
          together.meet();
        }
        if (r == 0) nccl_.check_order(false);
      });
    }
    for (auto& rank : ranks) rank.join();
    nccl_.launch_at_poll(2);
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

}  // namespace
}  // namespace shoal::runtime
