#include "fsdp/protect/adoption.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include <gtest/gtest.h>

#include "fsdp/protect/protected_update.h"
#include "runtime/process/process.h"

namespace shoal::fsdp {
namespace {

constexpr std::size_t kNumel = 1000, kArenaBytes = 8192, kOffset = 2048;

// A node's memories, with one parameter of 1000 elements for rank 1 of 2. Its momentum lies in a memory that both ranks share.
class AdoptionTest : public testing::Test {
 protected:
  AdoptionTest() {
    spec_.rank = 1;
    spec_.grid = {2, 1};
    spec_.step = 4;
    spec_.units = {{"mesh/unit-0", kArenaBytes}, {"mesh/arrays-0", kArenaBytes}};
    const Piece piece{kNumel, kNumel, kNumel, 1};
    spec_.arrays = {{"param", 0, 0, DType::kFloat32, piece, kOffset},
                    {"grad", 0, 0, DType::kFloat32, piece, {}},
                    {"momentum_buffer", 0, 0, DType::kFloat32, piece, kOffset, 1},
                    {"step", 0, 0, DType::kFloat32, {0, 1, 1, 1}, {}}};
    memories_.emplace("mesh/unit-0", runtime::make_memory("arena", kArenaBytes).value());
    memories_.emplace("mesh/arrays-0", runtime::make_memory("arrays", kArenaBytes).value());
    const std::size_t bytes = StepRecord::bytes_for(spec_).value();
    memories_.emplace("record", runtime::make_memory("record", bytes).value());
    record_memory_ = map("record", bytes);
    arena_ = map("mesh/unit-0", kArenaBytes);
    arrays_ = map("mesh/arrays-0", kArenaBytes);
  }

  runtime::Mapping map(const std::string& key, std::size_t bytes) {
    return runtime::map(memories_.at(key), bytes, runtime::Access::kReadWrite).value();
  }
  AdoptedShard::FindMemory find() {
    return [this](const std::string& key) -> Result<Fd> {
      if (!memories_.contains(key)) return fail(not_found("no memory " + key));
      return runtime::duplicate(memories_.at(key));
    };
  }
  // A rank that records step 5 if `records`. It is killed at this moment of the update, or, with `moment` -1, before the update.
  void rank_that_dies(bool usable, bool records, int moment) {
    const pid_t pid = fork();
    if (pid == 0) {
      const StepRecord record = StepRecord::make(record_memory_.span(), spec_);
      record.set_usable(usable);
      const Memories arenas{arena_.span(), arrays_.span()};
      auto* const p = reinterpret_cast<float*>(arena_.data() + kOffset);
      for (std::size_t i = 0; i < kNumel; ++i) p[i] = 1;
      std::memset(arrays_.data(), 0, arrays_.size());
      ProtectedUpdate update(record, arenas);
      StepRecord::Item item{};
      item.kernel = StepRecord::Item::Kernel::kSgd;
      item.sgd = {.lr = 1, .momentum = 0.5, .first = true};
      item.step = 1;
      const auto at = [&](std::size_t i) { return record.at(record.arrays()[i].place, arenas); };
      auto* const g = reinterpret_cast<float*>(at(1));
      for (std::size_t i = 0; i < kNumel; ++i) g[i] = 0.25f;
      update.begin(5).value();
      (void)update.add(item, {{at(0), at(1), at(2)}, kNumel}, reinterpret_cast<const float*>(at(3)));
      if (records) update.record();
      if (moment >= 0) update.run(1, [&](Moment, std::uint64_t) { moment-- == 0 ? kill(getpid(), SIGKILL) : 0; });
      kill(getpid(), SIGKILL);
    }
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
  }
  static std::map<std::string, float> last_elements(const AdoptedShard& shard) {
    std::map<std::string, float> out;
    for (const auto& a : shard.arrays()) out[a.name] = reinterpret_cast<const float*>(a.data)[a.piece.numel() - 1];
    return out;
  }
  using Elements = std::map<std::string, float>;

  StepRecord::Spec spec_;
  std::map<std::string, Fd> memories_;
  runtime::Mapping record_memory_, arena_, arrays_;
};

const std::map<std::string, float> kBefore{{"param", 1}, {"momentum_buffer", 0}, {"step", 0}};
const std::map<std::string, float> kAfter{{"param", 0.75f}, {"momentum_buffer", 0.25f}, {"step", 1}};

TEST_F(AdoptionTest, AStepThatCountsIsFinishedFromTheRecord) {
  for (int moment = 0; moment < 14; ++moment) {
    rank_that_dies(true, true, moment);
    AdoptedShard shard = AdoptedShard::open("record", find()).value();
    EXPECT_EQ(shard.rank(), 1);
    EXPECT_EQ(shard.grid().world_size, 2);
    ASSERT_TRUE(shard.settle(5));
    EXPECT_EQ(last_elements(shard), kAfter) << moment;
    EXPECT_EQ(shard.words().finished, 5u);
    EXPECT_EQ(shard.arrays()[0].piece.begin, kNumel);
    ASSERT_TRUE(shard.settle(5));  // again: no effect
    EXPECT_EQ(last_elements(shard), kAfter);
    record_memory_ = {};
    memories_.insert_or_assign("record", runtime::make_memory("record", StepRecord::bytes_for(spec_).value()).value());
    record_memory_ = map("record", StepRecord::bytes_for(spec_).value());
  }
}

TEST_F(AdoptionTest, AStepThatDoesNotCountLeavesTheStateBefore) {
  rank_that_dies(true, true, -1);  // recorded by this rank, but not by all
  AdoptedShard shard = AdoptedShard::open("record", find()).value();
  EXPECT_EQ(shard.words().recorded, 5u);
  ASSERT_TRUE(shard.settle(4));
  EXPECT_EQ(last_elements(shard), kBefore);
  EXPECT_EQ(shard.settle(6).error().code(), Code::kDataLoss);
  ASSERT_TRUE(shard.settle(5));
  EXPECT_EQ(shard.settle(4).error().code(), Code::kDataLoss);  // a finished step cannot be undone
}

TEST_F(AdoptionTest, ALivingRankAndStatesBeingLoadedAreRefused) {
  rank_that_dies(false, true, -1);
  EXPECT_NE(AdoptedShard::open("record", find()).value().settle(4).error().message().find("loaded"), std::string::npos);
  EXPECT_EQ(AdoptedShard::open("another", find()).error().code(), Code::kNotFound);
  auto* const header = reinterpret_cast<StepRecord::Header*>(record_memory_.data());
  header->usable = 1;
  const pid_t child = fork();
  if (child == 0) {
    AdoptedShard shard = AdoptedShard::open("record", find()).value();
    header->pid = getppid();
    header->start_time = 0;
    _exit(shard.settle(4) ? 0 : 1);  // another process has that pid now: the rank has ended
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  header->pid = getppid();
  header->start_time = runtime::start_time(getppid());
  const auto refused = AdoptedShard::open("record", find()).value().settle(4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason(), "StillAlive");
}

TEST_F(AdoptionTest, DamagedRecordsAreRefused) {
  EXPECT_EQ(AdoptedShard::open("record", find()).error().code(), Code::kDataLoss);  // the rank died before it made the record
  rank_that_dies(true, true, -1);
  const StepRecord record = StepRecord::open(record_memory_.span()).value();
  record.items()[0].numel = 1u << 20;
  EXPECT_EQ(AdoptedShard::open("record", find()).value().settle(5).error().code(), Code::kDataLoss);
  record.arrays()[0].place.offset = kArenaBytes;
  EXPECT_EQ(AdoptedShard::open("record", find()).error().code(), Code::kDataLoss);
}

TEST(CommittedStep, CountsWhenAllHaveRecordedItOrOneHasBegun) {
  const auto decide = [](std::vector<RecordWords> ranks, bool all = true) { return committed_step(ranks, all); };
  EXPECT_EQ(decide({{4, 4, 4}, {4, 4, 4}}), 4u);
  EXPECT_EQ(decide({{5, 4, 4}, {4, 4, 4}}), 4u);         // one rank has not recorded step 5
  EXPECT_EQ(decide({{5, 4, 4}, {5, 4, 4}}), 5u);         // all have
  EXPECT_EQ(decide({{5, 5, 4}, {5, 4, 4}}), 5u);         // one is within the update
  EXPECT_EQ(decide({{6, 5, 5}, {5, 5, 4}}), 5u);         // a fast rank has recorded the next step
  EXPECT_EQ(decide({{5, 4, 4}, {5, 4, 4}}, false), 4u);  // the record of a third rank is lost
  EXPECT_EQ(decide({{5, 5, 4}, {5, 4, 4}}, false), 5u);
  EXPECT_EQ(decide({}), 0u);
}

}  // namespace
}  // namespace shoal::fsdp
