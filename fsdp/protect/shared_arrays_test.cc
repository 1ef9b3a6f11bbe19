#include "fsdp/protect/shared_arrays.h"

#include <map>

#include <gtest/gtest.h>

#include "fsdp/protect/protected_shard.h"

namespace shoal::fsdp {
namespace {

// Two units on one host, and its node.
class SharedArraysTest : public testing::Test {
 protected:
  Units units(int rank, Grid grid, int dim = 0) {
    Units out;
    for (const std::string name : {"unit-0", "unit-1"}) {
      Layout layout = Layout::make({{"w", {5, 3}, DType::kFloat32, true, dim}, {"b", {2}, DType::kFloat32}}).value();
      const Fd arena = open()(name + std::to_string(grid.world_size), layout.arena_bytes(grid)).value();
      auto unit = ShardedUnit::make(name, std::move(layout), arena, rank, grid, {}).value();
      unit->set_arena_key(name + std::to_string(grid.world_size));
      out.push_back(std::move(unit));
    }
    return out;
  }
  OpenMemory open() {
    return [this](const std::string& key, std::size_t bytes) -> Result<Fd> {
      if (!memories_.contains(key)) memories_.emplace(key, runtime::make_memory(key, bytes).value());
      if (runtime::memory_bytes(memories_.at(key)).value() != bytes) return fail(invalid_argument("it exists with another size"));
      return runtime::duplicate(memories_.at(key));
    };
  }
  std::shared_ptr<SharedArrays> share(const Units& units, const std::shared_ptr<SharedArrays>& before = nullptr) {
    return SharedArrays::open(units, states_, "arrays", before, open()).value();
  }

  const std::vector<StateSpec> states_{
      {0, 0, "step"}, {0, 0, "grad"}, {0, 0, "exp_avg"}, {0, 1, "exp_avg"}, {1, 0, "master", DType::kFloat64}};
  std::map<std::string, Fd> memories_;
};

TEST_F(SharedArraysTest, AnotherMeshReadsTheShardsWithoutACopy) {
  for (int rank = 0; rank < 2; ++rank) {
    const Units two = units(rank, 2);
    auto record = ProtectedShard::make(two, states_, 7, "mesh-" + std::to_string(rank), share(two), open()).value();
    for (std::size_t i = 1; i < states_.size(); ++i) {
      for (auto& byte : record->state(i)) byte = std::byte(10 * i + static_cast<std::size_t>(rank));
    }
    EXPECT_EQ(record->state(0).size(), sizeof(float));  // in the record itself
  }
  const Units one = units(0, 1);
  const auto shared = share(one);
  auto record = ProtectedShard::make(one, states_, 7, "another mesh", shared, open()).value();
  for (std::size_t i = 1; i < states_.size(); ++i) {
    const auto whole = record->state(i);
    const Placed& p = one[states_[i].unit]->layout().placed()[states_[i].parameter];
    const std::size_t size = dtype_bytes(states_[i].dtype);
    ASSERT_EQ(whole.size(), p.numel * size);
    const std::size_t first = piece_of(p, 2, 0).numel() * size;
    for (std::size_t b = 0; b < whole.size(); ++b) EXPECT_EQ(whole[b], std::byte(10 * i + (b < first ? 0 : 1))) << i << " " << b;
    EXPECT_EQ(whole.data(), shared->memory().data() + *shared->find(states_[i]));
  }
  EXPECT_EQ(record->state(0)[0], std::byte{});
}

TEST_F(SharedArraysTest, AStayingProcessUsesItsMappingAgain) {
  const auto before = share(units(0, 2));
  before->populate(units(0, 2));
  EXPECT_EQ(share(units(0, 1), before)->memory().data(), before->memory().data());
  EXPECT_NE(share(units(0, 1))->memory().data(), before->memory().data());
  const auto others = SharedArrays::open(units(0, 1), states_, "other arrays", before, open()).value();
  EXPECT_NE(others->memory().data(), before->memory().data());
}

TEST_F(SharedArraysTest, ParametersOfOtherSizesNeedOtherMemory) {
  const Units two = units(0, 2);
  const auto shared = share(two);
  EXPECT_TRUE(shared->fits(two, states_));
  EXPECT_TRUE(shared->fits(units(0, 1), states_));
  EXPECT_FALSE(shared->fits(two, {states_.begin(), states_.end() - 1}));
  Layout layout = Layout::make({{"w", {6, 3}, DType::kFloat32}, {"b", {2}, DType::kFloat32}}).value();
  const Fd arena = open()("another arena", layout.arena_bytes(2)).value();
  Units others = two;
  others[0] = ShardedUnit::make("unit-0", std::move(layout), arena, 0, 2, {}).value();
  others[0]->set_arena_key("another arena");
  EXPECT_FALSE(shared->fits(others, states_));
  EXPECT_EQ(ProtectedShard::make(others, states_, 0, "mesh", shared, open()).error().code(), Code::kInvalidArgument);
}

TEST_F(SharedArraysTest, AllOtherShardsLieInRecords) {
  EXPECT_TRUE(SharedArrays::possible(units(0, 2)));
  EXPECT_FALSE(SharedArrays::possible(units(0, {4, 2})));  // replicas
  EXPECT_FALSE(SharedArrays::possible(units(0, 2, 1)));    // sharded on the second dim
  const Units two = units(0, 2);
  auto record = ProtectedShard::make(two, states_, 0, "mesh", nullptr, open()).value();
  EXPECT_EQ(record->state(1).size(), 3 * 3 * sizeof(float));
  EXPECT_FALSE(SharedArrays::open(two, {{2, 0, "grad"}}, "others", nullptr, open()).has_value());
}

}  // namespace
}  // namespace shoal::fsdp
