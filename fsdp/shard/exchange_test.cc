#include "fsdp/shard/exchange.h"

#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "fsdp/shard/sharded_model.h"
#include "runtime/loop/loop.h"
#include "runtime/transport/make_communicator.h"

namespace shoal::fsdp {
namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

// Parameters in place, sharded on another dim, in half precision, and with fewer rows than ranks.
Layout layout_of(int unit) {
  Parameter half{"half", {4, 3}};
  half.compute_dtype = DType::kBFloat16;
  half.reduce_dtype = DType::kFloat32;
  Parameter columns{"columns", {3, 7}};
  columns.dim = 1;
  if (unit == 0) return Layout::make({{"w", {7, 5}}, columns}).value();
  return Layout::make({half, {"b", {1}}, {"unused", {2, 2}}}).value();
}

class ExchangeTest : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  struct Ended {
    Bytes shards;  // this rank's shards, appended after each step
    Bytes wholes;  // whole parameters, appended as each forward reads them
    std::vector<std::vector<bool>> present;
  };

  Fd shared(const std::string& name, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto it = memories_.find(name);
    if (it == memories_.end()) it = memories_.emplace(name, runtime::make_memory(name, bytes).value()).first;
    return runtime::duplicate(it->second).value();
  }

  // One rank's model. `shares`: memory shared with the others, else messages.
  std::unique_ptr<ShardedModel> make(int rank, Grid grid, bool shares, const std::vector<Layout>& layouts) {
    const auto memory = [&](const std::string& name, std::size_t bytes) {
      return shares ? shared(name, bytes) : runtime::make_memory(name, bytes).value();
    };
    ShardedModel::Options options;
    options.waits.spins = 0;
    options.waits.timeout = 20s;
    if (!shares) {
      runtime::CommunicatorRequest request;
      request.rank = rank;
      request.world_size = grid.world_size;
      request.name = "communicator";
      request.timeout = 20s;
      request.memory.emplace().spins = 0;
      request.memory->open = [&](const std::string& name, std::size_t bytes, int) -> Result<std::shared_ptr<runtime::Mapping>> {
        return std::make_shared<runtime::Mapping>(runtime::map(shared(name, bytes), bytes, runtime::Access::kReadWrite).value());
      };
      options.communicator = runtime::make_communicator(std::move(request), clock_).value();
    }
    Units units;
    for (std::size_t u = 0; u < layouts.size(); ++u) {
      const auto name = "unit" + std::to_string(u);
      units.push_back(ShardedUnit::make(name, layouts[u], memory(name, layouts[u].arena_bytes(grid)), rank, grid, {}).value());
    }
    const std::size_t control = ShardedModel::control_bytes(grid.world_size), slots = ShardedModel::slot_bytes(units, grid, 2);
    return std::make_unique<ShardedModel>(
        rank, grid, std::move(units), runtime::map(memory("control", control), control, runtime::Access::kReadWrite).value(),
        runtime::map(memory("slots", slots), slots, runtime::Access::kReadWrite).value(), clock_, std::move(options));
  }

  static void append(Bytes& out, const std::byte* data, std::size_t bytes) { out.insert(out.end(), data, data + bytes); }

  // Three steps of SGD with gradients that depend on rank, parameter, element and value.
  static Result<Ended> train(ShardedModel& model, Grid grid) {
    Ended ended;
    const int shard = grid.shard_of(model.rank());
    for (const auto& unit : model.units()) {
      for (std::size_t i = 0; i < unit->layout().placed().size(); ++i) {
        auto* own = reinterpret_cast<float*>(unit->own(i));
        for (std::size_t k = 0; k < unit->own_bytes(i) / 4; ++k) own[k] = 0.37f * static_cast<float>(10 * shard + static_cast<int>(k));
      }
    }
    for (int step = 0; step < 3; ++step) {
      SHOAL_OK(model.enter(true));
      for (std::size_t u = 0; u < model.units().size(); ++u) {
        const auto& unit = *model.units()[u];
        SHOAL_OK(model.forward_begin(u, true));
        for (std::size_t i = 0; i < unit.layout().placed().size(); ++i)
          append(ended.wholes, unit.whole(i), unit.layout().placed()[i].bytes);
        model.forward_end(u, true, true);
      }
      std::vector<std::vector<std::vector<float>>> grads(model.units().size());
      for (std::size_t u = model.units().size(); u-- > 0;) {
        const auto& unit = *model.units()[u];
        SHOAL_OK(model.backward_begin(u, model.leases().version()));
        std::vector<std::vector<float>> whole;
        std::vector<Reducer::Gradient> gradients;
        for (const auto& p : unit.layout().placed()) {
          whole.emplace_back(p.numel);
          for (std::size_t k = 0; k < p.numel; ++k)
            whole.back()[k] = 0.01f * static_cast<float>(1 + model.rank() + step) * static_cast<float>(k + 1);
          grads[u].emplace_back(unit.own_bytes(gradients.size()) / 4);
          Reducer::Gradient g;
          const bool used = p.parameter.name != "unused" && !(p.parameter.name == "b" && model.rank() == 0);
          g.whole = used ? reinterpret_cast<const std::byte*>(whole.back().data()) : nullptr;
          g.own = grads[u].back().empty() ? nullptr : reinterpret_cast<std::byte*>(grads[u].back().data());
          gradients.push_back(g);
        }
        SHOAL_OK(model.backward_end(u, gradients, {1.0 / grid.world_size, true}, true));
      }
      SHOAL_OK(model.finish_backward(true));
      for (const auto& reduced : model.reductions().take()) {
        ended.present.push_back(reduced.present);
        const auto& unit = *model.units()[reduced.unit];
        for (std::size_t i = 0; i < reduced.present.size(); ++i) {
          auto* own = reinterpret_cast<float*>(unit.own(i));
          for (std::size_t k = 0; reduced.present[i] && k < grads[reduced.unit][i].size(); ++k) own[k] -= grads[reduced.unit][i][k];
          append(ended.shards, unit.own(i), unit.own_bytes(i));
        }
      }
      model.end_step();
    }
    return ended;
  }

  std::vector<Ended> run(Grid grid, bool shares) {
    memories_.clear();
    std::vector<Ended> out(static_cast<std::size_t>(grid.world_size));
    std::vector<std::thread> ranks;
    for (int r = 0; r < grid.world_size; ++r) {
      ranks.emplace_back([&, r] {
        const auto model = make(r, grid, shares, {layout_of(0), layout_of(1)});
        auto ended = train(*model, grid);
        ASSERT_TRUE(ended) << ended.error().to_string();
        out[static_cast<std::size_t>(r)] = *std::move(ended);
      });
    }
    for (auto& t : ranks) t.join();
    return out;
  }

  runtime::Loop loop_;
  const std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  std::mutex mutex_;
  std::map<std::string, Fd> memories_;
};

TEST_P(ExchangeTest, TrainsToTheSameBitsAsSharedMemory) {
  const Grid grid(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const auto messages = run(grid, false), memory = run(grid, true);
  for (std::size_t r = 0; r < messages.size(); ++r) {
    EXPECT_EQ(messages[r].wholes, memory[r].wholes);
    EXPECT_EQ(messages[r].shards, memory[r].shards);
    EXPECT_EQ(messages[r].present, memory[r].present);
    EXPECT_FALSE(messages[r].shards.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Grids, ExchangeTest,
                         testing::Values(std::tuple(1, 1), std::tuple(2, 1), std::tuple(3, 1), std::tuple(4, 2), std::tuple(2, 2)));

TEST_F(ExchangeTest, AUnitIsGatheredOncePerVersion) {
  const auto zero = make(0, 2, false, {layout_of(0)}), one = make(1, 2, false, {layout_of(0)});
  std::thread other([&] {
    ASSERT_TRUE(one->enter(false));
    ASSERT_TRUE(one->unshard(0));
  });
  ASSERT_TRUE(zero->enter(false));
  ASSERT_TRUE(zero->unshard(0));
  other.join();
  for (int i = 0; i < 3; ++i) {  // needs no other rank
    zero->reshard(0);
    ASSERT_TRUE(zero->unshard(0));
  }
}

TEST_F(ExchangeTest, DivergedRanksGetAnError) {
  const auto zero = make(0, 2, false, {layout_of(0), layout_of(1)}), one = make(1, 2, false, {layout_of(1), layout_of(0)});
  std::thread other([&] { EXPECT_EQ(one->unshard(0).error().reason(), "Diverged"); });
  EXPECT_EQ(zero->unshard(0).error().reason(), "Diverged");
  other.join();
}

TEST_F(ExchangeTest, RanksThatRunOtherUnitsGetAnError) {
  const auto zero = make(0, 2, false, {layout_of(0), layout_of(1)}), one = make(1, 2, false, {layout_of(0), layout_of(1)});
  const auto expect = [](const Result<void>& ended, const char* text) {
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().reason(), "Diverged");
    EXPECT_NE(ended.error().to_string().find(text), std::string::npos) << ended.error().to_string();
  };
  std::thread other([&] { expect(one->unshard(1), "'unshard(unit1)'"); });
  expect(zero->unshard(0), "'unshard(unit1)'");
  other.join();
}

TEST_F(ExchangeTest, RanksThatRunOtherUnitsOfTheSameSizeGetAnError) {
  const auto zero = make(0, 2, false, {layout_of(0), layout_of(0)}), one = make(1, 2, false, {layout_of(0), layout_of(0)});
  std::thread other([&] { EXPECT_EQ(one->unshard(1).error().reason(), "Diverged"); });
  EXPECT_EQ(zero->unshard(0).error().message(), "the ranks' passes differ: rank 0 unshards unit 0 where rank 1 unshards unit 1");
  other.join();
}

}  // namespace
}  // namespace shoal::fsdp
