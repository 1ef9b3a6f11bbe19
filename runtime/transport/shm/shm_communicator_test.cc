#include "runtime/transport/shm/shm_communicator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"

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

// Memories by name, in place of a node.
class Host {
 public:
  Result<std::shared_ptr<Mapping>> memory(const std::string& name, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto it = memories_.find(name);
    if (it == memories_.end()) it = memories_.emplace(name, make_memory(name, bytes).value()).first;
    SHOAL_TRY(Mapping mapping, map(it->second, bytes, Access::kReadWrite));
    return std::make_shared<Mapping>(std::move(mapping));
  }
  // Records a process's end, as a node does.
  void bury(const std::string& name, int member, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    const Mapping m = map(memories_.at(name), MembershipPage::kBytes, Access::kReadWrite).value();
    MembershipPage(m.data()).mark_gone(static_cast<std::uint32_t>(member), cause);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Fd> memories_;
};

class ShmCommunicatorTest : public testing::Test {
 protected:
  using Rank = std::function<void(ShmCommunicator&)>;

  // Runs the program once per rank, each in its own thread.
  void run(int world, const Rank& program) {
    std::vector<std::thread> ranks;
    for (int r = 0; r < world; ++r) {
      ranks.emplace_back([&, r] {
        auto c = make(r, world);
        program(*c);
      });
    }
    for (auto& t : ranks) t.join();
  }
  std::shared_ptr<ShmCommunicator> make(int rank, int world) {
    auto options = options_;
    options.rank = rank;
    options.world_size = world;
    options.name = name_;
    options.memory = [this](const std::string& name, std::size_t bytes, int) { return host_.memory(name, bytes); };
    return ShmCommunicator::make(std::move(options), clock_).value();
  }

  Loop loop_;
  const std::shared_ptr<Clock> clock_ = make_real_clock(loop_);
  Host host_;
  std::string name_ = "test";
  ShmCommunicator::Options options_ = [] {
    ShmCommunicator::Options o;
    o.spins = 0;
    o.timeout = 20s;
    o.chunk_bytes = 1024;  // small, so that messages take many rounds
    o.channel_bytes = 256;
    return o;
  }();
};

float value(int rank, std::size_t i) { return static_cast<float>(rank * 1000) + 0.1f * static_cast<float>(i % 977); }
Floats input_of(int rank, std::size_t numel) {
  Floats v(numel);
  for (std::size_t i = 0; i < numel; ++i) v[i] = value(rank, i);
  return v;
}
Floats sum_of(int world, std::size_t numel) {
  Floats v = input_of(0, numel);
  for (int r = 1; r < world; ++r) {
    for (std::size_t i = 0; i < numel; ++i) v[i] += value(r, i);
  }
  return v;
}

class Collectives : public ShmCommunicatorTest, public testing::WithParamInterface<std::tuple<int, std::size_t>> {
 protected:
  const int world_ = std::get<0>(GetParam());
  const std::size_t numel_ = std::get<1>(GetParam());
  // Uneven parts: rank r has numel + 3 r elements, one of the ranks none.
  std::size_t part(int r) const { return r == 1 ? 0 : numel_ + 3 * static_cast<std::size_t>(r); }
  std::vector<std::size_t> counts() const {
    std::vector<std::size_t> c;
    for (int r = 0; r < world_; ++r) c.push_back(part(r) * sizeof(float));
    return c;
  }
  std::size_t total() const {
    const auto c = counts();
    return std::accumulate(c.begin(), c.end(), std::size_t{0}) / sizeof(float);
  }
};

TEST_P(Collectives, AllReduceSumsInTheOrderOfRanks) {
  run(world_, [&](ShmCommunicator& c) {
    for (int i = 0; i < 3; ++i) {
      Floats v = input_of(c.rank(), numel_);
      ASSERT_TRUE(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {})->wait());
      ASSERT_EQ(v, sum_of(world_, numel_));
    }
  });
}

TEST_P(Collectives, AllGatherPutsUnevenPartsInOrder) {
  run(world_, [&](ShmCommunicator& c) {
    Floats expected;
    for (int r = 0; r < world_; ++r) {
      const auto v = input_of(r, part(r));
      expected.insert(expected.end(), v.begin(), v.end());
    }
    Floats got(total());
    const Floats mine = input_of(c.rank(), part(c.rank()));
    ASSERT_TRUE(c.all_gather(in(mine), out(got), counts(), DType::kFloat32, {})->wait());
    ASSERT_EQ(got, expected);
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPart) {
  run(world_, [&](ShmCommunicator& c) {
    const Floats all = sum_of(world_, total()), mine = input_of(c.rank(), total());
    Floats got(part(c.rank()));
    ASSERT_TRUE(c.reduce_scatter(in(mine), out(got), counts(), DType::kFloat32, ReduceOp::kSum, {})->wait());
    std::size_t begin = 0;
    for (int r = 0; r < c.rank(); ++r) begin += part(r);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
  });
}

TEST_P(Collectives, BroadcastComesFromAnyRoot) {
  run(world_, [&](ShmCommunicator& c) {
    for (int root = 0; root < world_; ++root) {
      Floats v = c.rank() == root ? input_of(root, numel_) : Floats(numel_);
      ASSERT_TRUE(c.broadcast(out(v), root, DType::kFloat32, {})->wait());
      ASSERT_EQ(v, input_of(root, numel_));
    }
  });
}

TEST_P(Collectives, AllToAllTakesUnevenParts) {
  const auto size = [&](int from, int to) { return to == 1 ? 0 : numel_ + static_cast<std::size_t>(5 * from + to); };
  run(world_, [&](ShmCommunicator& c) {
    Floats mine, expected;
    std::vector<std::size_t> sends, receives;
    for (int r = 0; r < world_; ++r) {
      const auto sent = input_of(100 * c.rank() + r, size(c.rank(), r)), received = input_of(100 * r + c.rank(), size(r, c.rank()));
      mine.insert(mine.end(), sent.begin(), sent.end());
      expected.insert(expected.end(), received.begin(), received.end());
      sends.push_back(sent.size() * sizeof(float));
      receives.push_back(received.size() * sizeof(float));
    }
    Floats got(expected.size());
    ASSERT_TRUE(c.all_to_all(in(mine), out(got), sends, receives, DType::kFloat32, {})->wait());
    ASSERT_EQ(got, expected);
  });
}

TEST_P(Collectives, SendsMeetReceivesAroundARing) {
  run(world_, [&](ShmCommunicator& c) {
    if (world_ == 1) return;
    const int to = (c.rank() + 1) % world_, from = (c.rank() + world_ - 1) % world_;
    const Floats mine = input_of(c.rank(), numel_);
    Floats got(numel_);
    // All ranks send first, which would deadlock if operations ran strictly in order.
    const auto sent = c.send(in(mine), to, DType::kFloat32, 7, {});
    const auto received = c.receive(out(got), from, DType::kFloat32, 7, {});
    ASSERT_TRUE(sent->wait());
    ASSERT_TRUE(received->wait());
    ASSERT_EQ(got, input_of(from, numel_));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 5),
                                          testing::Values(std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{10'007})));

TEST_F(ShmCommunicatorTest, EveryDTypeIsGatheredAndBarriersKeepRanksTogether) {
  std::atomic<int> came{0};
  run(3, [&](ShmCommunicator& c) {
    for (int d = 0; d <= static_cast<int>(DType::kFloat8E5M2FNUZ); ++d) {
      const auto dtype = static_cast<DType>(d);
      const std::size_t bytes = 11 * dtype_bytes(dtype);
      const std::vector<std::byte> mine(bytes, static_cast<std::byte>(c.rank() + 1));
      std::vector<std::byte> got(3 * bytes);
      ASSERT_TRUE(c.all_gather(mine, got, std::vector<std::size_t>(3, bytes), dtype, {})->wait());
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<std::byte>(i / bytes + 1));
    }
    ++came;
    ASSERT_TRUE(c.barrier({})->wait());
    ASSERT_EQ(came.load(), 3);
  });
}

TEST_F(ShmCommunicatorTest, OperationsRunInTheBackgroundAndAreAwaitedInAnyOrder) {
  run(3, [&](ShmCommunicator& c) {
    std::vector<Floats> values;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) values.push_back(input_of(c.rank(), 100 * static_cast<std::size_t>(i)));
    for (auto& v : values) {
      Call call;
      call.background = true;
      works.push_back(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, call));
    }
    while (!works.front()->done()) std::this_thread::yield();  // progress without a waiting thread
    for (std::size_t i = works.size(); i-- > 0;) {
      ASSERT_TRUE(works[i]->wait());
      ASSERT_EQ(values[i], sum_of(3, 100 * i));
    }
  });
}

TEST_F(ShmCommunicatorTest, AWindowIsReadWithoutItsOwner) {
  run(2, [&](ShmCommunicator& c) {
    const auto window = c.window(c.rank() == 0 ? 0 : 400, {}).value();
    EXPECT_EQ(window->bytes(1), 400u);
    if (c.rank() == 1) std::fill(window->own().begin(), window->own().end(), std::byte{5});
    ASSERT_TRUE(c.barrier({})->wait());
    std::vector<std::byte> got(100);
    if (c.rank() == 0) {
      ASSERT_TRUE(c.read(*window, 1, 300, got));
      EXPECT_EQ(got, std::vector<std::byte>(100, std::byte{5}));
      EXPECT_EQ(c.read(*window, 1, 301, got).error().code(), Code::kInvalidArgument);
      EXPECT_EQ(c.read(*window, 2, 0, got).error().code(), Code::kInvalidArgument);
    }
  });
}

// ---- failures ---------------------------------------------------------------------------------------------------------------

void expect_text(const Result<void>& result, Code code, const std::vector<std::string>& texts) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), code);
  for (const auto& t : texts) EXPECT_NE(result.error().to_string().find(t), std::string::npos) << result.error().to_string();
}

TEST_F(ShmCommunicatorTest, DifferentCollectivesAreNamedOnEveryRank) {
  run(3, [&](ShmCommunicator& c) {
    Floats v(10);
    ASSERT_TRUE(c.barrier({})->wait());
    const auto work = c.rank() == 2 ? c.broadcast(out(v), 0, DType::kFloat32, label("embed", 4))
                                    : c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, label("clip", 3));
    auto ended = work->wait();
    if (ended) ended = c.barrier({})->wait();  // the broadcast itself may succeed
    expect_text(ended, Code::kInvalidArgument,
                {"broadcast 2 (40 bytes of float32 from rank 0) 'embed', step 4", "'clip', step 3", "rank 2"});
    EXPECT_FALSE(c.barrier({})->wait());
  });
}

TEST_F(ShmCommunicatorTest, DifferentSizesDTypesAndOperationsAreNamed) {
  const std::vector<std::function<WorkPtr(ShmCommunicator&, Floats&)>> of_rank_one = {
      [](auto& c, auto& v) { return c.all_reduce(in(v).first(20), out(v).first(20), DType::kFloat32, ReduceOp::kSum, {}); },
      [](auto& c, auto& v) { return c.all_reduce(in(v), out(v), DType::kBFloat16, ReduceOp::kSum, {}); },
      [](auto& c, auto& v) { return c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kMax, {}); },
  };
  const std::vector<std::string> texts = {"20 bytes", "bfloat16", "max of"};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    name_ = texts[i];  // a separate group
    run(2, [&](ShmCommunicator& c) {
      Floats v(10);
      const auto work = c.rank() == 1 ? of_rank_one[i](c, v) : c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {});
      expect_text(work->wait(), Code::kInvalidArgument, {"collectives differ", texts[i]});
    });
  }
}

TEST_F(ShmCommunicatorTest, AnAllToAllWhoseSizesDoNotMeetIsNamed) {
  run(2, [&](ShmCommunicator& c) {
    Floats mine(4), got(4);
    const std::vector<std::size_t> sends{8, 8}, receives = c.rank() == 0 ? std::vector<std::size_t>{8, 8} : std::vector<std::size_t>{4, 8};
    const auto work = c.all_to_all(in(mine), out(got).first(receives[0] + receives[1]), sends, receives, DType::kFloat32, {});
    auto ended = work->wait();
    if (ended) ended = c.barrier({})->wait();
    expect_text(ended, Code::kInvalidArgument, {"rank 0 sends 8 bytes to rank 1, which expects 4"});
  });
}

TEST_F(ShmCommunicatorTest, RanksThatWaitForEachOtherAreTold) {
  run(2, [&](ShmCommunicator& c) {
    Floats v(1);
    const auto work = c.rank() == 0 ? c.receive(out(v), 1, DType::kFloat32, 0, label("tokens", 5)) : c.barrier(label("end", 6));
    expect_text(work->wait(), Code::kInvalidArgument,
                {"wait for each other", "rank 0 waits for rank 1 in recv from rank 1 (tag 0, 4 bytes of float32) 'tokens', step 5",
                 "rank 1 waits for rank 0 in barrier 1 'end', step 6"});
  });
}

TEST_F(ShmCommunicatorTest, AMessageOfAnotherSizeOrTagIsNamed) {
  run(2, [&](ShmCommunicator& c) {
    Floats v(4);
    const auto work = c.rank() == 0 ? c.receive(out(v), 1, DType::kFloat32, 3, {}) : c.send(in(v).first(8), 0, DType::kFloat32, 2, {});
    auto ended = work->wait();
    if (ended) ended = c.barrier({})->wait();  // a send that fits into the channel succeeds
    expect_text(ended, Code::kInvalidArgument, {"tag 3, 16 bytes of float32", "rank 1 sends 8 bytes of float32 with tag 2"});
  });
}

TEST_F(ShmCommunicatorTest, WhoeverHasLeftIsNamed) {
  run(2, [&](ShmCommunicator& c) {
    ASSERT_TRUE(c.barrier({})->wait());
    if (c.rank() == 1) return;
    expect_text(c.barrier(label("second"))->wait(), Code::kUnavailable, {"rank 1 has left, rank 0 waits for it in barrier 2 'second'"});
  });
}

TEST_F(ShmCommunicatorTest, ADeathEndsEveryOperationAndTheOthersGoOnWithoutIt) {
  run(3, [&](ShmCommunicator& c) {
    ASSERT_TRUE(c.barrier({})->wait());
    if (c.rank() == 1) {
      host_.bury("test/1", 1, "killed by SIGKILL");
      return;
    }
    Floats v{static_cast<float>(c.rank())};
    expect_text(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {})->wait(), Code::kUnavailable, {"rank 1", "SIGKILL"});
    expect_text(c.barrier({})->wait(), Code::kUnavailable, {"SIGKILL"});
    EXPECT_EQ(c.lost(), std::vector<int>{1});
    const auto next = c.reform().value();
    EXPECT_EQ(next->generation(), 2u);
    EXPECT_EQ(next->world_size(), 2);
    EXPECT_EQ(next->rank(), c.rank() == 0 ? 0 : 1);
    ASSERT_TRUE(next->all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {})->wait());
    EXPECT_EQ(v[0], 2);
  });
}

TEST_F(ShmCommunicatorTest, ADeathWhileTheGroupIsFormedAgainIsHeard) {
  auto zero = make(0, 3), one = make(1, 3), two = make(2, 3);
  host_.bury("test/1", 2, "killed");
  const auto next = zero->reform().value();
  host_.bury("test/1", 1, "killed as well");  // before it joined the next generation
  expect_text(next->barrier({})->wait(), Code::kUnavailable, {"killed as well"});
}

TEST_F(ShmCommunicatorTest, AbortEndsWhatIsPendingOnEveryRankWithTheFirstCause) {
  run(3, [&](ShmCommunicator& c) {
    if (c.rank() == 2) {
      ASSERT_TRUE(c.barrier({})->wait());
      c.abort(cancelled("the job is over"));
      c.abort(internal("later"));
      expect_text(c.barrier({})->wait(), Code::kCancelled, {"the job is over"});
      return;
    }
    ASSERT_TRUE(c.barrier({})->wait());
    const auto work = c.barrier(label("pending"));
    expect_text(work->wait(), Code::kCancelled, {"the job is over", "'pending'"});
    EXPECT_TRUE(work->done());
    EXPECT_EQ(c.failed()->code(), Code::kCancelled);
  });
}

TEST_F(ShmCommunicatorTest, WhatWasToldToHaveFailedIsLeftAlone) {
  auto zero = make(0, 2), one = make(1, 2);
  const Floats own{1}, other{2};
  const std::vector<std::size_t> counts{sizeof(float), sizeof(float)};
  Floats gathered(2), others(2);
  const auto failing = zero->all_gather(in(own), out(gathered), counts, DType::kFloat32, {});
  const auto later = zero->barrier({});
  const auto brought = one->all_gather(in(other), out(others), counts, DType::kFloat32, {});
  zero->abort(cancelled("the job is over"));
  expect_text(failing->wait(), Code::kCancelled, {"the job is over"});
  EXPECT_TRUE(failing->done());
  gathered = {-1, -1};  // the caller may reuse the buffer
  (void)brought->wait();
  EXPECT_TRUE(later->done());
  expect_text(later->wait(), Code::kCancelled, {"the job is over"});
  EXPECT_EQ(gathered, (Floats{-1, -1}));
}

TEST_F(ShmCommunicatorTest, LatenessIsAWarningAndThenAnError) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  options_.warn_after = 100ms;
  options_.warn = [&](const std::string& text) {
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
  options_.interrupted = [&] { return stop.load(); };
  auto zero = make(0, 2), one = make(1, 2);
  const auto work = zero->barrier({});
  EXPECT_EQ(work->wait().error().reason(), "Interrupted");
  stop = false;
  std::thread other([&] { EXPECT_TRUE(one->barrier({})->wait()); });
  EXPECT_TRUE(work->wait());
  other.join();
}

TEST_F(ShmCommunicatorTest, WhatCannotBeAskedIsRefused) {
  run(2, [&](ShmCommunicator& c) {
    Floats v(4);
    const std::vector<std::size_t> counts{8, 8};
    expect_text(c.all_reduce(in(v), out(v), DType::kInt16, ReduceOp::kSum, {})->wait(), Code::kUnimplemented, {"int16"});
    expect_text(c.all_gather(in(v), out(v), counts, DType::kFloat32, {})->wait(), Code::kInvalidArgument, {"16 bytes", "part 8"});
    expect_text(c.broadcast(out(v), 2, DType::kFloat32, {})->wait(), Code::kInvalidArgument, {"rank 2 of a group of 2"});
    expect_text(c.send(in(v), c.rank(), DType::kFloat32, 0, {})->wait(), Code::kInvalidArgument, {"itself"});
    ASSERT_TRUE(c.barrier({})->wait());  // refused calls have no effect
  });
  ShmCommunicator::Options options;
  options.world_size = 100;
  EXPECT_EQ(ShmCommunicator::make(options, clock_).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace shoal::runtime
