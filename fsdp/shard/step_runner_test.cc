#include "fsdp/shard/step_runner.h"

#include <optional>

#include <gtest/gtest.h>

#include "runtime/loop/loop.h"
#include "runtime/loop/side_thread.h"

namespace shoal::fsdp {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kRows = 7;
constexpr int kSteps = 4;
constexpr Adam kAdamW{.lr = 0.1, .eps = 0.5};  // so large an eps lets it see the scale of gradients

Edge data(std::int32_t from) { return {from, EdgeKind::kData}; }
Edge order(std::int32_t from) { return {from, EdgeKind::kOrder}; }

StepGraph written() {
  StepGraph g({"a", "b"});
  const auto add = [&](Op op, std::int32_t unit, std::vector<Edge> after = {}) { return g.add(op, unit, std::move(after)).value(); };
  const auto wa = add(Op::kUnshard, 0), wb = add(Op::kUnshard, 1);
  const auto a = add(Op::kForward, 0, {data(wa)});
  const auto b = add(Op::kForward, 1, {data(a), data(wb)});
  const auto loss = add(Op::kForward, -1, {data(b)});
  const auto gb = add(Op::kBackward, 1, {data(loss)});
  const auto rb = add(Op::kReduceScatter, 1, {data(gb)});
  add(Op::kReshard, 1, {order(gb)});
  const auto ga = add(Op::kBackward, 0, {data(gb)});
  const auto ra = add(Op::kReduceScatter, 0, {data(ga)});
  add(Op::kReshard, 0, {order(ga)});
  const auto commit = add(Op::kCommit, -1, {data(ra), data(rb)});
  add(Op::kOptimizerUpdate, 0, {order(commit)});
  add(Op::kOptimizerUpdate, 1, {order(commit)});
  return g;
}

// The gradient of each row is the row itself minus the rank: what AdamW makes of that is easily said.
class Program : public StepProgram {
 public:
  explicit Program(ShardedModel& model) : model_(model) {}
  Result<void> forward(const Node& node, std::int32_t) override {
    if (node.unit >= 0 && before_forward) return before_forward(node);
    return {};
  }
  Result<Gradients> backward(const Node& node, std::int32_t) override {
    const auto unit = static_cast<std::size_t>(node.unit);
    const auto* whole = reinterpret_cast<const float*>(model_.units()[unit]->whole(0));
    for (std::size_t i = 0; i < kRows; ++i) gradient_[unit][i] = whole[i] - static_cast<float>(model_.rank());
    held.push_back(unit);
    return Gradients{reinterpret_cast<const std::byte*>(gradient_[unit])};
  }
  void released(std::size_t unit) override { std::erase(held, unit); }

  std::function<Result<void>(const Node&)> before_forward;
  std::vector<std::size_t> held;  // units whose gradients are still wanted

 private:
  ShardedModel& model_;
  float gradient_[2][kRows] = {};
};

class StepRunnerTest : public testing::Test {
 protected:
  void place(int world, std::function<bool()> interrupted = {}) {
    world_ = world;
    const Layout layout = Layout::make({{"w", {kRows}, DType::kFloat32, true}}).value();
    const Fd arenas[2] = {runtime::make_memory("a", layout.arena_bytes(world)).value(),
                          runtime::make_memory("b", layout.arena_bytes(world)).value()};
    std::optional<Fd> control, slots;
    for (int r = 0; r < world; ++r) {
      ShardedModel::Units units;
      for (int u = 0; u < 2; ++u) units.push_back(ShardedUnit::make(u == 0 ? "a" : "b", layout, arenas[u], r, world, {}).value());
      const std::size_t control_bytes = ShardedModel::control_bytes(world), slot_bytes = ShardedModel::slot_bytes(units, world, 2);
      if (!control) control = runtime::make_memory("control", control_bytes).value();
      if (!slots) slots = runtime::make_memory("slots", slot_bytes).value();
      ShardedModel::Options options;
      options.spins = 0;
      options.timeout = 60s;
      models_.push_back(std::make_shared<ShardedModel>(
          r, world, std::move(units), runtime::map(*control, control_bytes, runtime::Access::kReadWrite).value(),
          runtime::map(*slots, slot_bytes, runtime::Access::kReadWrite).value(), clock_, std::move(options)));
      runners_.push_back(StepRunner::make(models_.back(), written(), {kAdamW, interrupted}).value());
      programs_.push_back(std::make_unique<Program>(*models_.back()));
    }
  }

  // Every rank on a thread of its own, as processes would be.
  std::vector<Result<void>> run_all(int steps) {
    std::vector<Result<void>> out(static_cast<std::size_t>(world_));
    std::vector<std::unique_ptr<runtime::SideThread>> ranks;
    for (std::size_t r = 0; r < out.size(); ++r) {
      ranks.push_back(std::make_unique<runtime::SideThread>([this, r, steps, &out] {
        for (int s = 0; s < steps && out[r]; ++s) out[r] = runners_[r]->run(*programs_[r]);
      }));
    }
    ranks.clear();  // joins
    return out;
  }

  runtime::Loop loop_;
  std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  int world_ = 1;
  std::vector<std::shared_ptr<ShardedModel>> models_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<std::unique_ptr<Program>> programs_;
};

TEST_F(StepRunnerTest, RanksTogetherUpdateAsOneWould) {
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(world);
    models_.clear(), runners_.clear(), programs_.clear();
    place(world);
    for (const auto& done : run_all(kSteps)) ASSERT_TRUE(done) << done.error().to_string();
    float p[kRows] = {}, m[kRows] = {}, v[kRows] = {}, g[kRows];
    for (int s = 1; s <= kSteps; ++s) {
      for (std::size_t i = 0; i < kRows; ++i) {
        float sum = 0;
        for (int r = 0; r < world; ++r) sum += p[i] - static_cast<float>(r);
        g[i] = sum * static_cast<float>(1.0 / world);
      }
      adam(kAdamW, s, p, g, m, v, kRows);
    }
    for (int r = 0; r < world; ++r) {
      for (std::size_t u = 0; u < 2; ++u) {
        const auto* whole = reinterpret_cast<const float*>(models_[static_cast<std::size_t>(r)]->units()[u]->whole(0));
        for (std::size_t i = 0; i < kRows; ++i) EXPECT_NEAR(whole[i], p[i], 1e-6) << "unit " << u << " row " << i;
      }
      EXPECT_TRUE(programs_[static_cast<std::size_t>(r)]->held.empty());
      EXPECT_EQ(runners_[static_cast<std::size_t>(r)]->steps(), static_cast<std::uint64_t>(kSteps));
    }
    if (world > 1) {
      EXPECT_NE(p[0], 0);
    }
  }
}

TEST_F(StepRunnerTest, WhatIsPrefetchedBeginsBeforeTheForwardThatHidesIt) {
  place(2);
  for (const auto& done : run_all(kSteps)) ASSERT_TRUE(done);
  for (const auto& runner : runners_) {
    const auto& spans = runner->measured();
    for (const auto& n : runner->graph().nodes()) EXPECT_TRUE(spans[static_cast<std::size_t>(n.id)].seen()) << runner->graph().label(n);
    EXPECT_LE(spans[1].start, spans[2].start);  // unshard(b), forward(a)
    EXPECT_EQ(runner->planned().size(), spans.size());
  }
}

TEST_F(StepRunnerTest, ARankThatFailsIsLostAndSaysWhyToTheOthers) {
  place(2);
  programs_[1]->before_forward = [this](const Node& n) -> Result<void> {
    if (runners_[1]->steps() == 2 && n.unit == 1) return fail(invalid_argument("not this batch").with_reason("Raised"));
    return {};
  };
  const auto done = run_all(kSteps);
  ASSERT_FALSE(done[1]);
  EXPECT_EQ(done[1].error().message(), "not this batch");
  EXPECT_EQ(done[1].error().context(), (std::vector<std::string>{"node 3 forward(b)", "rank 1", "step 2"}));
  ASSERT_FALSE(done[0]);
  EXPECT_EQ(done[0].error().reason(), "ActorDied");
  EXPECT_EQ(done[0].error().message(), "its step 2 failed: not this batch");
  for (std::size_t r = 0; r < 2; ++r) {
    const auto again = runners_[r]->run(*programs_[r]);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().to_string(), done[r].error().to_string());
  }
}

TEST_F(StepRunnerTest, ASignalEndsAWaitForOthers) {
  place(2, [] { return true; });
  const auto done = runners_[0]->run(*programs_[0]);  // rank 1 never comes
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().reason(), "Interrupted");
}

TEST_F(StepRunnerTest, AnotherModelsGraphIsRefused) {
  place(1);
  const auto other = StepRunner::make(models_[0], StepGraph({"a"}), {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().reason(), "BadGraph");  // it has no loss
  StepGraph fewer({"a"});
  const auto w = fewer.add(Op::kUnshard, 0, {}).value();
  const auto x = fewer.add(Op::kForward, 0, {data(w)}).value();
  ASSERT_TRUE(fewer.add(Op::kReshard, 0, {order(x)}));
  ASSERT_TRUE(fewer.add(Op::kForward, -1, {data(x)}));
  const auto made = StepRunner::make(models_[0], fewer, {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().message(), "the step graph has the units a, the model a, b");
}

}  // namespace
}  // namespace shoal::fsdp
