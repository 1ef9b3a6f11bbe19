#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <tuple>

#include <gtest/gtest.h>

#include "runtime/transport/conformance/transports.h"
#include "runtime/transport/reduction.h"

namespace shoal::runtime {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<std::byte>;

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

// ---- transport x world size x length ----

class Collectives : public testing::TestWithParam<std::tuple<TestedTransport, int, std::size_t>> {
 protected:
  void SetUp() override {
    if (const auto& missing = std::get<0>(GetParam()).missing; !missing.empty()) GTEST_SKIP() << missing;
  }
  void run(const std::function<void(Communicator&)>& program) { run_ranks(*group_, world_, program); }

  const int world_ = std::get<1>(GetParam());
  const std::size_t numel_ = std::get<2>(GetParam());
  const std::unique_ptr<TestGroup> group_ = std::get<0>(GetParam()).make(world_);
  // The size of rank r's part: numel + 3 r elements, and none for rank 1.
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
  run([&](Communicator& c) {
    for (int i = 0; i < 3; ++i) {
      Floats v = input_of(c.rank(), numel_);
      ASSERT_TRUE(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, {})->wait());
      ASSERT_EQ(v, sum_of(world_, numel_));
    }
  });
}

TEST_P(Collectives, AllGatherPutsUnevenPartsInOrder) {
  run([&](Communicator& c) {
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
  run([&](Communicator& c) {
    const Floats all = sum_of(world_, total()), mine = input_of(c.rank(), total());
    Floats got(part(c.rank()));
    ASSERT_TRUE(c.reduce_scatter(in(mine), out(got), counts(), DType::kFloat32, ReduceOp::kSum, {})->wait());
    std::size_t begin = 0;
    for (int r = 0; r < c.rank(); ++r) begin += part(r);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
  });
}

TEST_P(Collectives, BroadcastComesFromAnyRoot) {
  run([&](Communicator& c) {
    for (int root = 0; root < world_; ++root) {
      Floats v = c.rank() == root ? input_of(root, numel_) : Floats(numel_);
      ASSERT_TRUE(c.broadcast(out(v), root, DType::kFloat32, {})->wait());
      ASSERT_EQ(v, input_of(root, numel_));
    }
  });
}

TEST_P(Collectives, AllToAllTakesUnevenParts) {
  const auto size = [&](int from, int to) { return to == 1 ? 0 : numel_ + static_cast<std::size_t>(5 * from + to); };
  run([&](Communicator& c) {
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
  run([&](Communicator& c) {
    if (world_ == 1) return;
    const int to = (c.rank() + 1) % world_, from = (c.rank() + world_ - 1) % world_;
    for (std::uint32_t tag = 0; tag < 2; ++tag) {
      const Floats mine = input_of(c.rank(), numel_ + tag);
      Floats got(numel_ + tag);
      // All ranks send before they receive, which would deadlock if an operation had to wait for the one before it.
      const auto sent = c.send(in(mine), to, DType::kFloat32, tag, {});
      const auto received = c.receive(out(got), from, DType::kFloat32, tag, {});
      ASSERT_TRUE(sent->wait());
      ASSERT_TRUE(received->wait());
      ASSERT_EQ(got, input_of(from, numel_ + tag));
    }
  });
}

// The parts of all ranks have numel_ elements. The input or output of one part lies at several places of the whole.
class Overlaps : public Collectives {
 protected:
  void SetUp() override {
    if (!std::get<0>(GetParam()).takes_overlaps) GTEST_SKIP() << "NCCL does not take it";
    Collectives::SetUp();
  }
  std::size_t whole() const { return numel_ * static_cast<std::size_t>(world_); }
  std::vector<std::size_t> even() const { return std::vector<std::size_t>(static_cast<std::size_t>(world_), numel_ * sizeof(float)); }
  // Where a part may begin: as the first and the last rank's, and between two ranks'.
  std::vector<std::size_t> places() const { return {0, (whole() - numel_) / 2, whole() - numel_}; }
  std::span<float> part_of(Floats& v, std::size_t at) const { return std::span(v).subspan(at, numel_); }
};

TEST_P(Overlaps, AnAllGatherTakesAnInputAnywhereInItsOutput) {
  run([&](Communicator& c) {
    Floats expected;
    for (int r = 0; r < world_; ++r) {
      const auto v = input_of(r, numel_);
      expected.insert(expected.end(), v.begin(), v.end());
    }
    for (const std::size_t at : places()) {
      Floats v(whole(), -1);
      const auto own = part_of(v, at);
      std::ranges::copy(input_of(c.rank(), numel_), own.begin());
      ASSERT_TRUE(c.all_gather(std::as_bytes(own), out(v), even(), DType::kFloat32, {})->wait());
      ASSERT_EQ(v, expected) << "the input begins at element " << at;
    }
  });
}

TEST_P(Overlaps, AReduceScatterTakesAnOutputAnywhereInItsInput) {
  run([&](Communicator& c) {
    const Floats all = sum_of(world_, whole());
    for (const std::size_t at : places()) {
      Floats v = input_of(c.rank(), whole());
      const auto own = part_of(v, at);
      ASSERT_TRUE(c.reduce_scatter(in(v), std::as_writable_bytes(own), even(), DType::kFloat32, ReduceOp::kSum, {})->wait());
      ASSERT_TRUE(std::ranges::equal(own, std::span(all).subspan(static_cast<std::size_t>(c.rank()) * numel_, numel_))) << at;
    }
  });
}

TEST_P(Overlaps, AnAllToAllTakesItsInputAsOutput) {
  run([&](Communicator& c) {
    Floats v, expected;
    for (int r = 0; r < world_; ++r) {
      const auto sent = input_of(100 * c.rank() + r, numel_), received = input_of(100 * r + c.rank(), numel_);
      v.insert(v.end(), sent.begin(), sent.end());
      expected.insert(expected.end(), received.begin(), received.end());
    }
    ASSERT_TRUE(c.all_to_all(in(v), out(v), even(), even(), DType::kFloat32, {})->wait());
    ASSERT_EQ(v, expected);
  });
}

TEST_P(Overlaps, AnAllReduceTakesAnInputThatBeginsInsideItsOutput) {
  run([&](Communicator& c) {
    Floats v(numel_ + numel_ / 2);
    const auto input = part_of(v, numel_ / 2), output = part_of(v, 0);
    std::ranges::copy(input_of(c.rank(), numel_), input.begin());
    ASSERT_TRUE(c.all_reduce(std::as_bytes(input), std::as_writable_bytes(output), DType::kFloat32, ReduceOp::kSum, {})->wait());
    ASSERT_TRUE(std::ranges::equal(output, sum_of(world_, numel_)));
  });
}

INSTANTIATE_TEST_SUITE_P(All, Overlaps,
                         testing::Combine(testing::ValuesIn(tested_transports()), testing::Values(1, 2, 3, 4),
                                          testing::Values(std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{10'007})));

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         testing::Combine(testing::ValuesIn(tested_transports()), testing::Values(1, 2, 3, 4),
                                          testing::Values(std::size_t{0}, std::size_t{1}, std::size_t{257}, std::size_t{10'007})));

// ---- transport x world size ----

class Operations : public testing::TestWithParam<std::tuple<TestedTransport, int>> {
 protected:
  void SetUp() override {
    if (!transport_.missing.empty()) GTEST_SKIP() << transport_.missing;
  }
  void run(const std::function<void(Communicator&)>& program) { run_ranks(*group_, world_, program); }

  const TestedTransport transport_ = std::get<0>(GetParam());
  const int world_ = std::get<1>(GetParam());
  const std::unique_ptr<TestGroup> group_ = transport_.make(world_);
};

TEST_P(Operations, TheGroupHasTheRanksOfTheRequest) {
  std::vector<int> ranks(static_cast<std::size_t>(world_), -1);
  run([&](Communicator& c) {
    ranks[static_cast<std::size_t>(c.rank())] = c.rank();
    EXPECT_EQ(c.world_size(), world_);
    EXPECT_EQ(c.generation(), 1u);
    EXPECT_EQ(c.transport(), transport_.name);
    EXPECT_FALSE(c.failed());
    EXPECT_TRUE(c.lost().empty());
    ASSERT_TRUE(c.barrier({})->wait());  // so that no rank leaves before the others have checked
  });
  for (int r = 0; r < world_; ++r) EXPECT_EQ(ranks[static_cast<std::size_t>(r)], r);
}

TEST_P(Operations, EveryDTypeIsMoved) {
  const auto world = static_cast<std::size_t>(world_);
  run([&](Communicator& c) {
    for (int d = 0; d < kNumDTypes; ++d) {
      const auto dtype = static_cast<DType>(d);
      const std::size_t bytes = 11 * dtype_bytes(dtype);
      const Bytes mine(bytes, static_cast<std::byte>(c.rank() + 1));
      Bytes got(world * bytes);
      ASSERT_TRUE(c.all_gather(mine, got, std::vector<std::size_t>(world, bytes), dtype, {})->wait());
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<std::byte>(i / bytes + 1));
    }
  });
}

// Fills `out` with elements of any dtype that collectives reduce. Floats are finite, since the bits of a NaN are not defined.
template <class T>
void fill(Bytes& out, int rank, T (*element)(std::size_t)) {
  for (std::size_t i = 0; i < out.size() / sizeof(T); ++i) {
    const T value = element(3 * i + 7 * static_cast<std::size_t>(rank));
    std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
  }
}
Bytes elements(DType dtype, int rank, std::size_t numel) {
  Bytes v(numel * dtype_bytes(dtype));
  switch (dtype) {
    case DType::kFloat32:
      fill<float>(v, rank, [](std::size_t i) { return 0.1f * static_cast<float>(i) - 3; });
      break;
    case DType::kFloat64:
      fill<double>(v, rank, [](std::size_t i) { return 0.1 * static_cast<double>(i) - 3; });
      break;
    case DType::kFloat16:
    case DType::kBFloat16:
      fill<std::uint16_t>(v, rank, [](std::size_t i) { return static_cast<std::uint16_t>(0x3c00 + i % 512); });
      break;
    case DType::kBool:
      fill<std::uint8_t>(v, rank, [](std::size_t i) { return static_cast<std::uint8_t>(i % 2); });
      break;
    default:
      fill<std::uint8_t>(v, rank, [](std::size_t i) { return static_cast<std::uint8_t>(31 * i); });
  }
  return v;
}

TEST_P(Operations, EveryReductionHasTheBitsOfReduce) {
  constexpr std::size_t kNumel = 77;
  const auto world = static_cast<std::size_t>(world_);
  run([&](Communicator& c) {
    for (int d = 0; d < kNumDTypes; ++d) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kBand,
                            ReduceOp::kBor, ReduceOp::kBxor}) {
        const auto dtype = static_cast<DType>(d);
        if (!check_reducible(dtype, op)) continue;
        std::vector<Bytes> inputs;
        std::vector<const std::byte*> sources;
        for (int r = 0; r < world_; ++r) inputs.push_back(elements(dtype, r, kNumel));
        for (const auto& i : inputs) sources.push_back(i.data());
        Bytes expected(inputs[0].size());
        reduce(dtype, op, sources, expected.data(), kNumel);

        const Bytes& mine = inputs[static_cast<std::size_t>(c.rank())];
        Bytes got(mine.size());
        if (op >= ReduceOp::kBand && !transport_.reduces_bits) {
          ASSERT_EQ(c.all_reduce(mine, got, dtype, op, {})->wait().error().code(), Code::kUnimplemented);
          continue;
        }
        ASSERT_TRUE(c.all_reduce(mine, got, dtype, op, {})->wait());
        ASSERT_EQ(got, expected) << dtype_name(dtype) << " " << reduce_op_name(op);

        std::vector<std::size_t> counts(world, 0);  // the last rank gets the whole result
        counts.back() = mine.size();
        Bytes part(counts[static_cast<std::size_t>(c.rank())]);
        ASSERT_TRUE(c.reduce_scatter(mine, part, counts, dtype, op, {})->wait());
        ASSERT_EQ(part, part.empty() ? Bytes() : expected) << dtype_name(dtype) << " " << reduce_op_name(op);
      }
    }
  });
}

TEST_P(Operations, GathersOfSeveralTensorsAreOneOperation) {
  run([&](Communicator& c) {
    const Floats even = input_of(c.rank(), 5), uneven = input_of(c.rank(), static_cast<std::size_t>(c.rank()));
    Floats all_even(5 * static_cast<std::size_t>(world_)), expected_even, all_uneven, expected_uneven;
    std::vector<std::size_t> even_counts, uneven_counts;
    for (int r = 0; r < world_; ++r) {
      const Floats of_even = input_of(r, 5), of_uneven = input_of(r, static_cast<std::size_t>(r));
      expected_even.insert(expected_even.end(), of_even.begin(), of_even.end());
      expected_uneven.insert(expected_uneven.end(), of_uneven.begin(), of_uneven.end());
      even_counts.push_back(5 * sizeof(float));
      uneven_counts.push_back(of_uneven.size() * sizeof(float));
    }
    all_uneven.resize(expected_uneven.size());
    const Communicator::Gather gathers[] = {{in(even), out(all_even), even_counts}, {in(uneven), out(all_uneven), uneven_counts}};
    const auto work = c.all_gather_each(gathers, DType::kFloat32, {});
    ASSERT_TRUE(work->wait());
    EXPECT_TRUE(work->ended());
    EXPECT_EQ(all_even, expected_even);
    EXPECT_EQ(all_uneven, expected_uneven);
    EXPECT_EQ(c.all_gather_each({}, DType::kFloat32, {})->wait().error().code(), Code::kInvalidArgument);
    const Communicator::Gather wrong[] = {{in(even), out(all_even), {}}};
    EXPECT_EQ(c.all_gather_each(wrong, DType::kFloat32, {})->wait().error().code(), Code::kInvalidArgument);
    ASSERT_TRUE(c.barrier({})->wait());
  });
}

TEST_P(Operations, ABarrierKeepsRanksTogether) {
  std::atomic<int> came{0};
  run([&](Communicator& c) {
    for (int i = 1; i <= 5; ++i) {
      ++came;
      ASSERT_TRUE(c.barrier({})->wait());
      ASSERT_GE(came.load(), i * world_);
    }
  });
}

TEST_P(Operations, TheyRunInTheBackgroundAndAreAwaitedInAnyOrder) {
  run([&](Communicator& c) {
    std::vector<Floats> values;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) values.push_back(input_of(c.rank(), 100 * static_cast<std::size_t>(i)));
    for (auto& v : values) {
      Call call;
      call.background = true;
      works.push_back(c.all_reduce(in(v), out(v), DType::kFloat32, ReduceOp::kSum, call));
    }
    while (!works.front()->ended()) std::this_thread::yield();  // the operation advances although no thread waits
    for (std::size_t i = works.size(); i-- > 0;) {
      ASSERT_TRUE(works[i]->wait());
      ASSERT_EQ(values[i], sum_of(world_, 100 * i));
    }
  });
}

TEST_P(Operations, AWindowIsReadWithoutItsOwner) {
  run([&](Communicator& c) {
    const int last = world_ - 1;
    auto made = c.window(c.rank() == last ? 400 : 0, {});
    if (transport_.scope != TestedTransport::Scope::kWhole) {
      EXPECT_EQ(made.error().code(), Code::kUnimplemented);
      return;
    }
    const auto window = std::move(made).value();
    EXPECT_EQ(window->bytes(last), 400u);
    std::fill(window->own().begin(), window->own().end(), std::byte{5});
    ASSERT_TRUE(c.barrier({})->wait());
    Bytes got(100);
    ASSERT_TRUE(c.read(*window, last, 300, got));
    EXPECT_EQ(got, Bytes(100, std::byte{5}));
    EXPECT_EQ(c.read(*window, last, 301, got).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(c.read(*window, world_, 0, got).error().code(), Code::kInvalidArgument);
    ASSERT_TRUE(c.barrier({})->wait());
  });
}

INSTANTIATE_TEST_SUITE_P(All, Operations, testing::Combine(testing::ValuesIn(tested_transports()), testing::Values(1, 2, 3, 4)));

}  // namespace
}  // namespace shoal::runtime
