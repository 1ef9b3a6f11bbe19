#include "fsdp/protect/replica_link.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include <gtest/gtest.h>

#include "fsdp/protect/adoption.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/conformance/memory_layer.h"

namespace shoal::fsdp {
namespace replica_test {

using namespace std::chrono_literals;
constexpr std::size_t kNumel = 1000, kArenaBytes = 8192, kOffset = 2048;

// Rank 0 owns one parameter with a momentum buffer. Rank 1, on another host, is its buddy.
class ReplicaTest : public testing::Test {
 protected:
  ReplicaTest() {
    spec_.grid = {2, 1};
    spec_.step = 4;
    spec_.units = {{"mesh/unit-0", kArenaBytes}};
    const Piece piece{0, kNumel, kNumel, 1};
    spec_.arrays = {{"param", 0, 0, DType::kFloat32, piece, kOffset},
                    {"grad", 0, 0, DType::kFloat32, piece, {}},
                    {"momentum_buffer", 0, 0, DType::kFloat32, piece, {}},
                    {"step", 0, 0, DType::kFloat32, {0, 1, 1, 1}, {}}};
    replica_spec_ = spec_;
    replica_spec_.units.clear();
    replica_spec_.arrays[0].in_arena.reset();
    arena_ = memory(kArenaBytes);
    own_ = memory(StepRecord::bytes_for(spec_).value());
    record_.emplace(StepRecord::make(own_.span(), spec_));
    arenas_ = {arena_.span()};
    std::ranges::fill(values(0), 1.0f);
    std::ranges::fill(values(2), 0.5f);
    const std::size_t bytes = StepRecord::bytes_for(replica_spec_).value();
    replica_memory_ = runtime::make_memory("replica", bytes).value();
    std::vector<ReplicaLink::Ward> wards;
    wards.push_back({0, runtime::map(replica_memory_, bytes, runtime::Access::kReadWrite).value(), replica_spec_});
    buddy_ = std::make_unique<ReplicaLink>(*record_, arenas_, options(1, -1, std::move(wards)));
    owner_ = std::make_unique<ReplicaLink>(*record_, arenas_, options(0, 1, {}));
  }

  static runtime::Mapping memory(std::size_t bytes) {
    return runtime::map(runtime::make_memory("m", bytes).value(), bytes, runtime::Access::kReadWrite).value();
  }
  ReplicaLink::Options options(int rank, int buddy, std::vector<ReplicaLink::Ward> wards) {
    ReplicaLink::Options out;
    out.layer = network_.join(rank);
    out.clock = clock_;
    out.buddy = buddy;
    out.wards = std::move(wards);
    out.changed = [this] {
      const std::lock_guard lock(mutex_);
      changed_.notify_all();
    };
    out.wait = [this](const std::function<bool()>& done, const std::string& what, int) -> Result<void> {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, 20s, done)) return fail(deadline_exceeded(what));
      return {};
    };
    return out;
  }
  std::span<float> values(std::size_t array) {
    return {reinterpret_cast<float*>(record_->at(record_->arrays()[array].place, arenas_)), array == 3 ? 1 : kNumel};
  }
  // The owner records a step, and sends it.
  Result<void> record(std::uint64_t step, float gradient, bool with_contents = false) {
    std::ranges::fill(values(1), gradient);
    update_.emplace(*record_, arenas_);
    StepRecord::Item item{};
    item.kernel = StepRecord::Item::Kernel::kSgd;
    item.sgd = {.lr = 0.1, .momentum = 0.5};
    item.step = static_cast<std::int64_t>(step);
    update_->begin(step).value();
    const auto at = [&](std::size_t i) { return reinterpret_cast<std::byte*>(values(i).data()); };
    SHOAL_OK(update_->add(item, {{at(0), at(1), at(2)}, kNumel}, values(3).data()));
    update_->record();
    return owner_->send_step(step, with_contents);
  }
  void commit(std::uint64_t step) {
    update_->run(1);
    for (auto* link : {owner_.get(), buddy_.get()}) link->committed(step);
  }
  // The replica after its buddy has stopped, brought to this step.
  std::vector<AdoptedShard::Array> adopted(std::uint64_t committed) {
    buddy_->stop();
    adopted_.emplace(AdoptedShard::open("replica", [this](const std::string&) { return runtime::duplicate(replica_memory_); }).value());
    EXPECT_TRUE(adopted_->settle(committed));
    return adopted_->arrays();
  }
  void expect_bits_of_the_owner(std::uint64_t committed) {
    const auto arrays = adopted(committed);
    ASSERT_EQ(arrays.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const auto own = std::as_bytes(values(i == 0 ? 0 : i + 1));
      EXPECT_EQ(std::memcmp(own.data(), arrays[i].data, own.size()), 0) << arrays[i].name;
    }
  }

  runtime::Loop loop_;
  const std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  runtime::MemoryNetwork network_{2};
  std::mutex mutex_;
  std::condition_variable changed_;
  StepRecord::Spec spec_, replica_spec_;
  runtime::Mapping arena_, own_;
  Fd replica_memory_;
  Memories arenas_;
  std::optional<StepRecord> record_;
  std::optional<ProtectedUpdate> update_;
  std::optional<AdoptedShard> adopted_;
  std::unique_ptr<ReplicaLink> owner_, buddy_;
};

TEST_F(ReplicaTest, AReplicaHasTheBitsOfItsOwnerAfterEachStep) {
  ASSERT_TRUE(owner_->send_contents(4));
  for (std::uint64_t step = 5; step < 9; ++step) {
    ASSERT_TRUE(record(step, 0.1f * static_cast<float>(step)));
    commit(step);
  }
  const auto costs = owner_->costs();
  EXPECT_EQ(costs.steps, 4u);
  EXPECT_EQ(costs.contents, 1u);
  EXPECT_LT(costs.step_bytes, kNumel * 4 + 2000);  // the gradient alone
  expect_bits_of_the_owner(8);
}

TEST_F(ReplicaTest, AStepThatIsRecordedCountsOnlyIfItIsCommitted) {
  ASSERT_TRUE(owner_->send_contents(4));
  ASSERT_TRUE(record(5, 0.25f));
  EXPECT_EQ(adopted(4)[0].data[0], std::as_bytes(values(0))[0]);
  EXPECT_EQ(adopted_->words().recorded, 5u);
  EXPECT_EQ(adopted_->words().finished, 4u);
  update_->run(1);
  expect_bits_of_the_owner(5);
}

TEST_F(ReplicaTest, RowsThatSomethingElseHasWrittenAreSentAgain) {
  ASSERT_TRUE(owner_->send_contents(4));
  ASSERT_TRUE(record(5, 0.25f));
  commit(5);
  values(0)[17] = 3;
  ASSERT_TRUE(record(6, 0.25f));
  commit(6);
  EXPECT_EQ(owner_->costs().contents, 2u);
  expect_bits_of_the_owner(6);
}

TEST_F(ReplicaTest, StatesThatWereLoadedReplaceThoseOfTheReplica) {
  ASSERT_TRUE(owner_->send_contents(4));
  ASSERT_TRUE(record(5, 0.25f));
  commit(5);
  std::ranges::fill(values(2), 7.0f);
  ASSERT_TRUE(owner_->send_contents(5));
  ASSERT_TRUE(record(6, 0.25f));
  commit(6);
  expect_bits_of_the_owner(6);
}

TEST_F(ReplicaTest, StatesThatAStepBeganAnewReplaceThoseOfTheReplica) {
  ASSERT_TRUE(owner_->send_contents(4));
  ASSERT_TRUE(record(5, 0.25f));
  commit(5);
  std::ranges::fill(values(2), 0.0f);
  ASSERT_TRUE(record(6, 0.25f, /*with_contents=*/true));
  commit(6);
  expect_bits_of_the_owner(6);
}

// A replica without a link, to which a test gives messages.
class ReplicaMessagesTest : public ReplicaTest {
 protected:
  using Kind = ReplicaHeader::Kind;

  auto expect(ReplicaHeader header, std::vector<std::uint32_t> arrays) {
    header.num_arrays = static_cast<std::uint32_t>(arrays.size());
    std::vector<std::byte> bytes(replica_header_bytes(arrays.size()));
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, arrays.data(), 4 * arrays.size());
    return replica_.expect(bytes);
  }
  bool fits(ReplicaHeader header, std::vector<std::uint32_t> arrays) { return expect(header, std::move(arrays)).has_value(); }
  bool takes(StepRecord::Item item) {
    auto pieces = expect({Kind::kStep, 1, 0, 0, 2, 5}, {1}).value();
    std::memcpy(pieces[0].data(), &item, sizeof item);
    return replica_.take().has_value();
  }
  void take_contents() {
    ASSERT_TRUE(fits({Kind::kContents, 0, 0, 0, 1, 4}, {0, 2, 3}));
    ASSERT_TRUE(replica_.take());
  }
  static StepRecord::Item item() {
    StepRecord::Item out{};
    out.kernel = StepRecord::Item::Kernel::kSgd;
    out.numel = kNumel;
    out.at[0] = {1, 0}, out.at[1] = {2, 0}, out.at[2] = {3, 0}, out.counter = {4, 0};
    return out;
  }
  // True if the owner's loss at this moment leaves rows and states.
  bool usable() { return StepRecord::open(memory_of_replica_.span()).value().header().usable == 1; }

  const runtime::Mapping memory_of_replica_ = memory(StepRecord::bytes_for(replica_spec_).value());
  Replica replica_{memory_of_replica_.span(), replica_spec_};
};

TEST_F(ReplicaMessagesTest, MessagesThatDoNotFitAreRefused) {
  EXPECT_FALSE(fits({Kind::kStep, 1, 0, 0, 1, 5}, {1})) << "rows come first";
  EXPECT_FALSE(fits({Kind::kContents, 0, 0, 0, 1, 4}, {0, 3})) << "the momentum is missing";
  take_contents();
  EXPECT_TRUE(fits({Kind::kStep, 1, 0, 0, 1, 5}, {1}));
  EXPECT_FALSE(fits({Kind::kStep, 1, 0, 0, 1, 6}, {1})) << "a step is missing";
  EXPECT_FALSE(fits({Kind::kStep, 9, 0, 0, 1, 5}, {1})) << "more updates than parameters";
  EXPECT_FALSE(fits({Kind::kStep, 1, 0, 0, 1, 5}, {4})) << "there are four arrays";
  EXPECT_FALSE(fits({Kind::kStep, 1, 0, 0, 1, 5}, {1, 1})) << "one twice";
  EXPECT_FALSE(fits({static_cast<Kind>(7), 0, 0, 0, 1, 5}, {1}));
  EXPECT_FALSE(replica_.expect(std::vector<std::byte>(7)));
  EXPECT_TRUE(usable());
}

TEST_F(ReplicaMessagesTest, UpdatesOfOtherArraysThanTheReplicaHasAreRefused) {
  take_contents();
  std::vector<StepRecord::Item> bad(6, item());
  bad[0].at[0].memory = 5;
  bad[1].numel = kNumel + 1;
  bad[2].at[1] = {4, 0};
  bad[3].dtypes[2] = DType::kFloat64;
  bad[4].counter = {1, 0};
  bad[5].counter.memory = 99;
  for (const auto& i : bad) EXPECT_FALSE(takes(i));
  EXPECT_TRUE(usable());
  EXPECT_TRUE(takes(item()));
}

TEST_F(ReplicaMessagesTest, RowsThatHaveNotAllArrivedAreUnusable) {
  EXPECT_FALSE(usable());
  take_contents();
  EXPECT_TRUE(usable());
  ASSERT_TRUE(fits({Kind::kContents, 0, 0, 0, 2, 4}, {0, 2, 3}));
  EXPECT_FALSE(usable());
  ASSERT_TRUE(replica_.take());
  EXPECT_TRUE(usable());
  ASSERT_TRUE(fits({Kind::kStep, 1, 0, 0, 3, 5}, {0, 1, 2, 3}));
  EXPECT_FALSE(usable());
}

}  // namespace replica_test
}  // namespace shoal::fsdp
