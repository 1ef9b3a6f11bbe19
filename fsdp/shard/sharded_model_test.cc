#include "fsdp/shard/sharded_model.h"

#include <optional>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"

namespace shoal::fsdp {
namespace {

// Ranks of a model of two units on plain memory and one thread, in an order that the test chooses. No call may need to wait.
class ShardedModelTest : public testing::Test {
 protected:
  void place(int world) {
    const Layout layout = Layout::make({{"w", {5}, DType::kFloat32, true}}).value();
    const Fd arenas[2] = {runtime::make_memory("a", layout.arena_bytes(world)).value(),
                          runtime::make_memory("b", layout.arena_bytes(world)).value()};
    std::optional<Fd> control, slots;
    for (int r = 0; r < world; ++r) {
      Units units;
      for (int u = 0; u < 2; ++u) units.push_back(ShardedUnit::make(u == 0 ? "a" : "b", layout, arenas[u], r, world, {}).value());
      const std::size_t control_bytes = ShardedModel::control_bytes(units, world),
                        slot_bytes = ShardedModel::slot_bytes(units, world, r, 2);
      if (!control) control = runtime::make_memory("control", control_bytes).value();
      if (!slots) slots = runtime::make_memory("slots", slot_bytes).value();
      ShardedModel::Options options;
      options.waits.spins = 0;
      options.waits.interrupted = [] { return true; };
      models_.push_back(std::make_unique<ShardedModel>(
          r, world, std::move(units), runtime::map(*control, control_bytes, runtime::Access::kReadWrite).value(),
          runtime::map(*slots, slot_bytes, runtime::Access::kReadWrite).value(), clock_, std::move(options)));
    }
  }
  void everybody_reads() {
    for (const auto& m : models_) ASSERT_TRUE(m->enter(false));
    for (const auto& m : models_) ASSERT_TRUE(m->unshard(0));
  }

  runtime::Loop loop_;
  std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::vector<std::unique_ptr<ShardedModel>> models_;
};

TEST_F(ShardedModelTest, AfterAWaitAtADoorThatFailedTheWindowOpensBeforeTheNextVersionIsRead) {
  place(2);
  auto& first = *models_[0];
  auto& second = *models_[1];
  everybody_reads();
  ASSERT_FALSE(first.leases().open_window("a test"));  // the other rank still reads
  EXPECT_FALSE(first.enter(false));
  EXPECT_FALSE(first.unshard(0));
  EXPECT_EQ(first.leases().version(), 1u);

  ASSERT_TRUE(second.leases().open_window("a test"));
  ASSERT_TRUE(second.enter(false));
  ASSERT_TRUE(first.unshard(0));
  EXPECT_EQ(first.leases().version(), 2u);
  ASSERT_TRUE(second.unshard(0));
}

TEST_F(ShardedModelTest, TheCallerDecidesWhetherAUnitIsResharded) {
  place(1);
  auto& model = *models_[0];
  for (int step = 0; step < 4; ++step) {
    const bool reshard = step < 2;  // false from step 2 on: the program keeps its leases
    ASSERT_TRUE(model.enter(true));
    for (std::size_t u = 0; u < 2; ++u) {
      ASSERT_TRUE(model.forward_begin(u, true));
      model.forward_end(u, true, reshard);
      EXPECT_EQ(model.units()[u]->leased(), !reshard) << "unit " << u << " after forward of step " << step;
    }
    for (const std::size_t u : {1u, 0u}) {
      ASSERT_TRUE(model.backward_begin(u, model.leases().version()));
      ASSERT_TRUE(model.backward_end(u, {}, {}, reshard));
      EXPECT_EQ(model.units()[u]->leased(), !reshard) << "unit " << u << " after backward of step " << step;
    }
    ASSERT_TRUE(model.finish_backward(true));
    EXPECT_FALSE(model.units()[0]->leased());
  }
}

TEST_F(ShardedModelTest, AUnitThatWasGivenUpIsReadAgainInTheNextVersionOnly) {
  place(1);
  auto& model = *models_[0];
  ASSERT_TRUE(model.enter(true));
  for (std::size_t u = 0; u < 2; ++u) ASSERT_TRUE(model.unshard(u));
  const auto version = model.leases().version();
  model.reshard(1, true);
  model.leases().give_up(1);
  for (const auto& refused : {model.unshard(1), model.leases().check_version(1, version), model.backward_begin(1, version)}) {
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason(), "StaleBackward");
    EXPECT_EQ(refused.error().message(), "unit b is read again in a step whose backward has already updated it");
  }
  EXPECT_TRUE(model.leases().check_version(0, version));
  EXPECT_TRUE(model.unshard_ahead(1, /*backward=*/false));  // does nothing for a unit that was given up
  EXPECT_FALSE(model.units()[1]->leased());
  ASSERT_TRUE(model.finish_backward(true));
  ASSERT_TRUE(model.enter(true));
  EXPECT_TRUE(model.unshard(1));
}

TEST_F(ShardedModelTest, RanksThatStartedOverSumTheirNewPartsOnly) {
  place(2);
  auto& first = *models_[0];
  auto& second = *models_[1];
  ASSERT_FALSE(first.reductions().sum_over_ranks(1));  // the other rank never asks for this sum
  first.reset();
  second.reset();
  ASSERT_FALSE(first.reductions().sum_over_ranks(2));  // this rank has contributed, and a signal ends its wait
  const auto sum = second.reductions().sum_over_ranks(3);
  ASSERT_TRUE(sum) << sum.error().to_string();
  EXPECT_EQ(*sum, 5);
}

TEST_F(ShardedModelTest, ASumWithARankThatStartedOverIsRefused) {
  place(2);
  auto& first = *models_[0];
  auto& second = *models_[1];
  first.reset();
  ASSERT_FALSE(first.reductions().sum_over_ranks(2));
  const auto sum = second.reductions().sum_over_ranks(3);
  ASSERT_FALSE(sum);
  EXPECT_EQ(sum.error().reason(), "StartedOver");
  EXPECT_EQ(sum.error().message(), "rank 0 has started step 1 over, rank 1 has not");
  second.reset();
  EXPECT_EQ(second.reductions().sum_over_ranks(3).value(), 5);
}

TEST_F(ShardedModelTest, AStepCountsOnceEveryRankHasRecordedItAlsoIfOneDiesThen) {
  place(2);
  auto& first = *models_[0];
  auto& second = *models_[1];
  const auto interrupted = first.commit(0);  // the other rank is not protected yet
  ASSERT_FALSE(interrupted);
  EXPECT_EQ(interrupted.error().reason(), "Interrupted");
  ASSERT_TRUE(second.commit(0));
  ASSERT_TRUE(first.commit(0));
  ASSERT_FALSE(first.commit(1));
  EXPECT_TRUE(second.has_recorded(0, 1));
  EXPECT_FALSE(first.has_recorded(1, 1));
  ASSERT_TRUE(second.commit(1));
  second.peers().mark_gone("rank 1 was killed");
  ASSERT_TRUE(first.commit(1));
  const auto dead = first.commit(2);
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().reason(), "ActorDied");
}

TEST_F(ShardedModelTest, MemoryIsThatOfItsMappings) {
  place(2);
  const auto memory = models_[0]->memory();
  EXPECT_EQ(memory.arenas, 2u * 4096);
  EXPECT_EQ(memory.slots, ShardedModel::slot_bytes(models_[0]->units(), 2, 0, 2));
  EXPECT_EQ(memory.control, ShardedModel::control_bytes(models_[0]->units(), 2));
  EXPECT_EQ(memory.total(), memory.arenas + memory.slots + memory.control);
}

}  // namespace
}  // namespace shoal::fsdp
