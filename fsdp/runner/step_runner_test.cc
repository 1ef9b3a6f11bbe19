#include "fsdp/runner/step_runner.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fsdp/graph/passes/passes.h"
#include "runtime/loop/loop.h"
#include "runtime/loop/side_thread.h"

namespace shoal::fsdp {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kRows = 7;
constexpr int kSteps = 4;
constexpr Adam kAdamW{.lr = 0.1, .eps = 0.5};  // large eps: AdamW depends on the scale of gradients

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

// The gradient of each row is the row minus the rank, so AdamW's result is easy to compute.
class Program : public StepProgram {
 public:
  explicit Program(ShardedModel& model) : model_(model) {}
  Result<void> forward(const Node& node, std::int32_t, bool saves) override {
    if (node.unit < 0) return {};
    if (saves) saved.insert({node.unit, node.micro});
    return before_forward ? before_forward(node) : Result<void>();
  }
  Result<void> recompute(const Node& node, std::int32_t input) override {
    ++recomputed;
    return forward(node, input, true);
  }
  Result<Gradients> backward(const Node& node, std::int32_t, bool reduced) override {
    EXPECT_EQ(saved.erase({node.unit, node.micro}), 1u) << "nothing was saved for unit " << node.unit;
    const auto unit = static_cast<std::size_t>(node.unit);
    const auto* whole = reinterpret_cast<const float*>(model_.units()[unit]->whole(0));
    auto& sum = sums_[unit];
    sum.resize(kRows);
    for (std::size_t i = 0; i < kRows; ++i) sum[i] += whole[i] - static_cast<float>(model_.rank());
    if (!reduced) return Gradients{};
    auto& mine = held[{node.unit, node.micro}];
    mine = std::exchange(sum, {});
    return Gradients{reinterpret_cast<const std::byte*>(mine.data())};
  }
  void released(std::int32_t unit, std::int32_t micro) override { EXPECT_EQ(held.erase({unit, micro}), 1u); }

  std::function<Result<void>(const Node&)> before_forward;
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<float>> held;  // gradients that the runner has not released
  std::set<std::pair<std::int32_t, std::int32_t>> saved;
  int recomputed = 0;

 private:
  ShardedModel& model_;
  std::vector<float> sums_[2];
};

class StepRunnerTest : public testing::Test {
 protected:
  void place(int world, std::function<bool()> interrupted = {}, const StepGraph& graph = written()) {
    world_ = world;
    const Layout layout = Layout::make({{"w", {kRows}, DType::kFloat32, true}}).value();
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
      options.waits.timeout = 60s;
      models_.push_back(std::make_shared<ShardedModel>(
          r, world, std::move(units), runtime::map(*control, control_bytes, runtime::Access::kReadWrite).value(),
          runtime::map(*slots, slot_bytes, runtime::Access::kReadWrite).value(), clock_, std::move(options)));
      runners_.push_back(StepRunner::make(models_.back(), graph, {kAdamW, "/tmp", interrupted}).value());
      programs_.push_back(std::make_unique<Program>(*models_.back()));
    }
  }

  // Makes the runners again, each with a record below `folder`.
  void record(const std::filesystem::path& folder) {
    for (std::size_t r = 0; r < runners_.size(); ++r) {
      const int rank = static_cast<int>(r);
      records_.push_back(runtime::Telemetry::open(
                             folder, {.role = "rank", .rank = rank, .world = world_, .host = fmt::format("host{}", r), .device = "cpu"})
                             .value());
      const auto graph = runners_[r]->graph();
      runners_[r] = StepRunner::make(models_[r], graph, {kAdamW, "/tmp", {}, records_[r]}).value();
    }
  }

  // Runs every rank in a separate thread, like processes.
  std::vector<Result<void>> run_all(int steps) {
    std::vector<Result<void>> out(static_cast<std::size_t>(world_));
    std::vector<std::unique_ptr<runtime::SideThread>> ranks;
    for (std::size_t r = 0; r < out.size(); ++r) {
      ranks.push_back(std::make_unique<runtime::SideThread>([this, r, steps, &out] {
        for (int s = 0; s < steps && out[r]; ++s) out[r] = runners_[r]->run(*programs_[r]);
      }));
    }
    ranks.clear();  // waits until all threads have ended
    return out;
  }

  runtime::Loop loop_;
  std::shared_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
  int world_ = 1;
  std::vector<std::shared_ptr<ShardedModel>> models_;
  std::vector<std::unique_ptr<StepRunner>> runners_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::shared_ptr<runtime::Telemetry>> records_;
};

// Waits until the record's live page shows this activity.
void await_activity(const runtime::Telemetry& record, runtime::Activity activity) {
  const Fd file(::open((record.folder() + "/live").c_str(), O_RDONLY));
  std::array<char, sizeof(runtime::LivePage)> page{};
  std::uint32_t shown = 0;
  while (pread(file.get(), page.data(), page.size(), 0) != static_cast<ssize_t>(page.size()) ||
         (std::memcpy(&shown, page.data() + offsetof(runtime::LivePage, activity), sizeof shown),
          shown != static_cast<std::uint32_t>(activity)))
    usleep(1000);
}

std::vector<std::string> lines_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST_F(StepRunnerTest, AStepIsRecordedByNodesAndWaits) {
  const auto folder = std::filesystem::path(testing::TempDir()) / fmt::format("graph{}", getpid());
  place(2);
  record(folder);
  // Rank 1 comes to the second unit only when rank 0 waits for it, behind its last computation.
  programs_[1]->before_forward = [&](const Node& node) -> Result<void> {
    if (node.unit == 1 && runners_[1]->steps() == 1) await_activity(*records_[0], runtime::Activity::kWindow);
    return {};
  };
  for (const auto& result : run_all(3)) ASSERT_TRUE(result) << result.error().to_string();
  for (const auto& r : records_) r->close(0, "");
  for (const auto& r : records_) {
    const auto rows = lines_of(r->folder() + "/steps.0-0.jsonl");
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(runtime::step_row(rows[2])->step, 3u);
    const auto spans = lines_of(r->folder() + "/spans.0-0.jsonl");
    ASSERT_EQ(spans.size(), 3u);
    std::set<std::pair<runtime::Activity, int>> seen;
    for (const auto& s : runtime::spans_row(spans[1]).value().spans) seen.insert({s.activity, s.unit});
    for (const auto activity : {runtime::Activity::kForward, runtime::Activity::kBackward}) {
      EXPECT_TRUE(seen.contains({activity, 0}) && seen.contains({activity, 1}));
    }
    EXPECT_TRUE(seen.contains({runtime::Activity::kForward, -1})) << "the loss";
    EXPECT_TRUE(seen.contains({runtime::Activity::kOptimizer, -1}));
    EXPECT_TRUE(r != records_[0] || seen.contains({runtime::Activity::kWindow, -1}));
    EXPECT_NE(lines_of(r->folder() + "/process.json")[0].find(R"("units":["a","b"])"), std::string::npos);
  }
  EXPECT_GT(runtime::step_row(lines_of(records_[0]->folder() + "/steps.0-0.jsonl")[1])->in(runtime::Activity::kWindow), 0);
  std::filesystem::remove_all(folder);
}

// The parameters after the same steps in one process, with `micro` times the gradient, clipped to `max_norm`.
std::vector<float> one_process(int world, int micro, double max_norm) {
  std::vector<float> p(kRows), m(kRows), v(kRows), g(kRows);
  for (int s = 1; s <= kSteps; ++s) {
    double squares = 0;
    for (std::size_t i = 0; i < kRows; ++i) {
      float sum = 0;
      for (int r = 0; r < world; ++r) sum += static_cast<float>(micro) * (p[i] - static_cast<float>(r));
      g[i] = sum * static_cast<float>(1.0 / world);
      squares += 2 * g[i] * g[i];  // two units have this gradient
    }
    const double factor = max_norm > 0 ? max_norm / (std::sqrt(squares) + 1e-6) : 1;
    for (auto& x : g) x *= static_cast<float>(std::min(factor, 1.0));
    adam(kAdamW, s, p.data(), g.data(), m.data(), v.data(), kRows);
  }
  return p;
}

TEST_F(StepRunnerTest, RanksTogetherUpdateAsOneWould) {
  struct Case {
    const char* name;
    int micro;
    double max_norm;
    std::function<void(PassOptions&)> passes;
  };
  const Case cases[] = {
      {"as written", 1, 0, [](PassOptions&) {}},
      {"on demand", 1, 0, [](PassOptions& o) { o.prefetch.depth = 0, o.reshard_after_forward = {true, true}; }},
      {"three micro-batches, reduced once", 3, 0, [](PassOptions& o) { o.accumulate = {3, false}; }},
      {"three micro-batches, reduced in each", 3, 0, [](PassOptions& o) { o.accumulate = {3, true}; }},
      {"recomputed", 1, 0, [](PassOptions& o) { o.recompute = {0, 1}; }},
      {"clipped", 1, 0.25, [](PassOptions& o) { o.max_norm = 0.25; }},
      {"updated in backward", 1, 0, [](PassOptions& o) { o.optimizer_in_backward = true; }},
      {"in one bucket", 1, 0, [](PassOptions& o) { o.unit_bytes = {28, 28}, o.bucket_bytes = 100; }},
      {"offloaded", 1, 0, [](PassOptions& o) { o.offload = {0, 1}; }},
      {"all at once", 2, 0,
       [](PassOptions& o) {
         o.reshard_after_forward = {true, false};
         o.recompute = {1};
         o.accumulate = {2, true};
         o.optimizer_in_backward = true;
         o.offload = {0, 1};
       }},
  };
  for (const auto& c : cases) {
    for (const int world : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", c.name, world));
      models_.clear(), runners_.clear(), programs_.clear();
      PassOptions options;
      c.passes(options);
      place(world, {}, apply(written(), options).value().graph);
      for (const auto& done : run_all(kSteps)) ASSERT_TRUE(done) << done.error().to_string();
      const auto p = one_process(world, c.micro, c.max_norm);
      for (int r = 0; r < world; ++r) {
        const auto rank = static_cast<std::size_t>(r);
        for (std::size_t u = 0; u < 2; ++u) {
          const auto* whole = reinterpret_cast<const float*>(models_[rank]->units()[u]->whole(0));
          for (std::size_t i = 0; i < kRows; ++i) EXPECT_NEAR(whole[i], p[i], 1e-6) << "unit " << u << " row " << i;
        }
        EXPECT_TRUE(programs_[rank]->held.empty());
        EXPECT_EQ(programs_[rank]->recomputed, kSteps * c.micro * static_cast<int>(options.recompute.size()));
        EXPECT_EQ(runners_[rank]->steps(), static_cast<std::uint64_t>(kSteps));
        EXPECT_EQ(std::isnan(runners_[rank]->norm()), c.max_norm == 0);
      }
      if (world > 1) {
        EXPECT_NE(p[0], 0);
      }
    }
  }
}

TEST(PlanRows, GradientsOfUnitsThatAreUpdatedInBackwardShareBytes) {
  StepGraph g({"a", "b", "c", "d"});
  std::int32_t grad = -1;
  std::vector<std::int32_t> reduced;
  for (std::int32_t u = 3; u >= 0; --u) {
    const auto after = grad < 0 ? std::vector<Edge>() : std::vector{data(grad)};
    grad = g.add(Op::kBackward, u, after).value();
    reduced.push_back(g.add(Op::kReduceScatter, u, {data(grad)}).value());
  }
  const auto commit = g.add(Op::kCommit, -1, {data(reduced.back())}).value();
  for (std::int32_t u = 0; u < 4; ++u) g.add(Op::kOptimizerUpdate, u, {order(commit)}).value();
  const std::vector<std::size_t> numel = {16, 16, 16, 16};
  EXPECT_EQ(plan_rows(g, numel).bytes, 4u * 64);
  EXPECT_EQ(plan_rows(optimizer_in_backward(g).value().graph, numel).bytes, 2u * 64);
}

TEST_F(StepRunnerTest, APrefetchBeginsBeforeTheForwardThatHidesIt) {
  place(2);
  for (const auto& done : run_all(kSteps)) ASSERT_TRUE(done);
  for (const auto& runner : runners_) {
    const auto& spans = runner->measured();
    for (const auto& n : runner->graph().nodes()) EXPECT_TRUE(spans[static_cast<std::size_t>(n.id)].seen()) << runner->graph().label(n);
    EXPECT_LE(spans[1].start, spans[2].start);  // unshard(b) begins before forward(a)
    EXPECT_EQ(runner->planned().size(), spans.size());
  }
}

TEST_F(StepRunnerTest, AFailedRankIsLostAndItsCauseReachesTheOthers) {
  place(2);
  programs_[1]->before_forward = [this](const Node& n) -> Result<void> {
    if (runners_[1]->steps() == 2 && n.unit == 1) return fail(invalid_argument("not this batch").with_reason("Raised"));
    return {};
  };
  const auto done = run_all(kSteps);
  ASSERT_FALSE(done[1]);
  EXPECT_EQ(done[1].error().message(), "not this batch");
  EXPECT_EQ(done[1].error().context(), (std::vector<std::string>{"node 3 forward(b)", "rank 1", "step 3"}));
  ASSERT_FALSE(done[0]);
  EXPECT_EQ(done[0].error().reason(), "ActorDied");
  EXPECT_EQ(done[0].error().message(), "its step 3 failed: not this batch");
  for (std::size_t r = 0; r < 2; ++r) {
    const auto again = runners_[r]->run(*programs_[r]);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().to_string(), done[r].error().to_string());
  }
}

TEST_F(StepRunnerTest, ASignalEndsAWaitForOthers) {
  place(2, [] { return true; });
  const auto done = runners_[0]->run(*programs_[0]);  // rank 1 does not run this step
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().reason(), "Interrupted");
}

TEST_F(StepRunnerTest, AnotherModelsGraphIsRefused) {
  place(1);
  const auto other = StepRunner::make(models_[0], StepGraph({"a"}), {});
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().reason(), "BadGraph");  // the graph has no loss
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
