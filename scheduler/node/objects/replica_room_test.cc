#include "scheduler/node/objects/replica_room.h"

#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/shm/memory.h"
#include "runtime/sim/sim_world.h"

namespace shoal::scheduler {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = 1 << 20, kLimit = 10 * kMiB;
constexpr std::size_t kProcess = 1;  // a process's place on the usage board

ReplicaMemory::Object replica(std::uint64_t id) { return {JobId{1}, ObjectId{id}, NodeId{2}}; }

class ReplicaRoomTest : public testing::Test {
 protected:
  ReplicaRoomTest() {
    board_.set_limit(kLimit);
    board_.set_members(2);
  }
  std::uint64_t kept() const { return board_.usage(UncountedBytes::kMember).kept; }
  // Counts a replica and makes its memory.
  void make(std::uint64_t id) {
    copies_.count(replica(id), kMiB);
    ASSERT_TRUE(copies_.make(replica(id), kMiB, {}));
  }
  void take(std::uint64_t bytes = kMiB) {
    room_.take(replica(1), 1, bytes, [this](Result<void> r) { taken_ = std::move(r); });
  }

  runtime::SimWorld world_{{}};
  const Fd words_memory_ = runtime::make_memory("board", runtime::UsageBoard::kBytes).value();
  const runtime::Mapping words_ = runtime::map(words_memory_, runtime::UsageBoard::kBytes, runtime::Access::kReadWrite).value();
  runtime::UsageBoard board_{words_.data()};
  const ObjectOptions options_{};
  storage::MemoryTable memory_{{}};
  UncountedBytes uncounted_{memory_, [this] { return board_; }};
  Spiller spiller_{world_.clock(), memory_, uncounted_, runtime::make_null_log(), options_};
  ReplicaMemory copies_{world_.clock(), uncounted_, options_};
  bool wanted_ = true;
  std::vector<std::uint64_t> asked_;  // bytes for which processes were asked to make room
  ReplicaRoom room_{world_.clock(),
                    uncounted_,
                    copies_,
                    spiller_,
                    options_,
                    {[this](const auto&, std::uint64_t) { return wanted_; }, [](std::uint64_t) { return false; },
                     [this](std::uint64_t bytes) { asked_.push_back(bytes); }}};
  std::optional<Result<void>> taken_;
};

TEST_F(ReplicaRoomTest, MemoryOfADroppedReplicaCountsUntilNoProcessReadsIt) {
  make(1);
  std::optional<Fd> reader = copies_.for_readers(replica(1)).value();
  copies_.drop(replica(1));
  world_.run_for(10s);
  EXPECT_EQ(kept(), kMiB);
  reader.reset();
  world_.run_for(1s);
  EXPECT_EQ(kept(), 0u);
}

TEST_F(ReplicaRoomTest, AReplicaThatAProcessReadsIsNotEvicted) {
  make(1);
  std::optional<Fd> reader = copies_.for_readers(replica(1)).value();
  EXPECT_FALSE(copies_.evict(replica(1)));
  EXPECT_EQ(kept(), kMiB);
  reader.reset();
  EXPECT_EQ(copies_.evict(replica(1)), kMiB);
  EXPECT_EQ(kept(), 0u);
}

TEST_F(ReplicaRoomTest, TheLeastRecentlyUsedReplicaIsEvictedFirst) {
  for (const std::uint64_t id : {1, 2, 3}) make(id);
  for (const std::uint64_t id : {3, 1, 2}) copies_.used(replica(id));
  EXPECT_EQ(copies_.evictable(), (std::vector{replica(3), replica(1), replica(2)}));
}

TEST_F(ReplicaRoomTest, ATransferWaitsUntilProcessesMakeRoom) {
  board_.set_kept(kProcess, kLimit);
  take();
  EXPECT_EQ(asked_, std::vector{kMiB});
  world_.run_for(1s);
  ASSERT_FALSE(taken_);
  board_.set_kept(kProcess, kLimit - kMiB);
  world_.run_for(10ms);
  ASSERT_TRUE(taken_ && *taken_);
  EXPECT_EQ(kept(), kMiB);
}

TEST_F(ReplicaRoomTest, ATransferFailsWhenNothingChangesForTheWholePatience) {
  board_.set_kept(kProcess, kLimit + kMiB);
  take();
  world_.run_for(options_.patience - 1s);
  board_.set_kept(kProcess, kLimit);  // memory was freed, but not enough
  world_.run_for(options_.patience - 1s);
  ASSERT_FALSE(taken_);
  world_.run_for(2s);
  ASSERT_TRUE(taken_ && !*taken_);
  EXPECT_EQ(taken_->error().reason(), "ObjectStoreFull");
  EXPECT_EQ(kept(), 0u);
}

TEST_F(ReplicaRoomTest, AnObjectBeyondTheLimitFailsAtOnce) {
  take(kLimit + 1);
  ASSERT_TRUE(taken_ && !*taken_);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(ReplicaRoomTest, ATransferThatIsNoLongerWantedTakesNothing) {
  board_.set_kept(kProcess, kLimit);
  take();
  wanted_ = false;
  board_.set_kept(kProcess, 0);
  world_.run_for(1s);
  EXPECT_FALSE(taken_);
  EXPECT_EQ(kept(), 0u);
}

}  // namespace
}  // namespace shoal::scheduler
