#include "fsdp/protocol/version_gate.h"

#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using Phase = VersionGate::Phase;

class GateTest : public testing::Test {
 protected:
  void make(int world) {
    memory_ = runtime::make_memory("control", Control::bytes(world, 0)).value();
    mapping_ = runtime::map(memory_, Control::bytes(world, 0), runtime::Access::kReadWrite).value();
    control_ = std::make_unique<Control>(mapping_.data(), world, 0);
    gates_.clear();
    for (int r = 0; r < world; ++r) gates_.emplace_back(*control_, r, world);
  }
  Fd memory_;
  runtime::Mapping mapping_;
  std::unique_ptr<Control> control_;
  std::vector<VersionGate> gates_;
};

TEST_F(GateTest, NoRankReadsUntilEveryRankHasEntered) {
  make(3);
  EXPECT_EQ(gates_[0].phase(), Phase::kWriting);
  EXPECT_TRUE(gates_[0].enter());
  EXPECT_TRUE(gates_[1].enter());
  EXPECT_FALSE(gates_[0].readable());
  EXPECT_EQ(gates_[0].missing_to_read(), 2);
  EXPECT_TRUE(gates_[2].enter());
  EXPECT_TRUE(gates_[0].readable());
  EXPECT_EQ(gates_[0].version(), 1u);
}

TEST_F(GateTest, NoRankWritesUntilEveryRankIsDone) {
  make(2);
  for (auto& g : gates_) g.enter();
  EXPECT_TRUE(gates_[0].leave());
  EXPECT_FALSE(gates_[0].writable());
  EXPECT_EQ(gates_[0].missing_to_write(), 1);
  EXPECT_TRUE(gates_[1].leave());
  gates_[1].open();
  gates_[0].open();
  EXPECT_EQ(gates_[0].phase(), Phase::kWriting);
}

TEST_F(GateTest, AReaderSeesThatAnotherRankHasLeftItsVersion) {
  make(2);
  for (auto& g : gates_) g.enter();
  EXPECT_FALSE(gates_[0].others_left());
  gates_[1].leave();
  EXPECT_TRUE(gates_[0].others_left());
  EXPECT_FALSE(gates_[1].others_left());  // rank 1 reads no version
  gates_[0].leave();
  gates_[0].open();
  EXPECT_FALSE(gates_[0].others_left());
  gates_[0].enter();
  EXPECT_FALSE(gates_[0].others_left());  // no rank has left the next version
}

TEST_F(GateTest, EnteringAgainWithoutAWindowIsTheSameVersion) {
  make(2);
  for (auto& g : gates_) g.enter();
  EXPECT_FALSE(gates_[0].enter());  // for an evaluation or another micro-batch
  EXPECT_EQ(gates_[0].version(), 1u);
  EXPECT_TRUE(gates_[0].readable());
}

TEST_F(GateTest, AFastRankEntersTheNextVersionWhileASlowOneStillWrites) {
  make(2);
  for (auto& g : gates_) g.enter();
  for (auto& g : gates_) g.leave();
  for (auto& g : gates_) g.open();
  gates_[0].enter();
  EXPECT_EQ(gates_[0].version(), 2u);
  EXPECT_FALSE(gates_[0].readable());  // rank 1 sleeps after its step()
  gates_[1].enter();
  EXPECT_TRUE(gates_[0].readable());
}

// Random schedules: in no order does a rank write a version that another may read.
TEST_F(GateTest, InNoScheduleDoAWriterAndAReaderOverlap) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const int world = 1 + static_cast<int>(random() % 5);
    make(world);
    std::vector<bool> reading(static_cast<std::size_t>(world));
    for (int i = 0; i < 400; ++i) {
      const auto r = random() % static_cast<unsigned>(world);
      auto& g = gates_[r];
      switch (g.phase()) {
        case Phase::kWriting:
          for (int q = 0; q < world; ++q) ASSERT_FALSE(reading[static_cast<std::size_t>(q)]) << "seed " << seed;
          if (random() % 2) g.enter();
          break;
        case Phase::kReading:
          if (!g.readable()) break;
          reading[r] = true;
          if (random() % 3 == 0) {
            reading[r] = false;
            g.leave();
          }
          break;
        case Phase::kLeaving:
          if (g.writable()) g.open();
          break;
      }
    }
  }
}

}  // namespace
}  // namespace shoal::fsdp
