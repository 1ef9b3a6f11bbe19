#include <algorithm>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include "fsdp/graph/step_graph.h"
#include "fsdp/plan/trace.h"

namespace shoal::fsdp {
namespace {

TEST(StepGraph, HasNoCycleByConstruction) {
  StepGraph g({"a"});
  const auto u = g.add(Op::kUnshard, 0, {}).value();
  const auto f = g.add(Op::kForward, 0, {{u, EdgeKind::kData}}).value();
  EXPECT_FALSE(g.add(Op::kForward, 0, {{5, EdgeKind::kData}}));
  EXPECT_FALSE(g.add(Op::kForward, 7, {}));
  EXPECT_FALSE(g.connect(f, u, EdgeKind::kOrder));
  EXPECT_TRUE(g.connect(u, f, EdgeKind::kOrder));
  EXPECT_EQ(g.nodes()[1].after.size(), 1u);  // an edge that exists is not added again
}

TEST(StepGraph, IsScheduledAsSoonAsEdgesAndLanesAllow) {
  StepGraph g({"a", "b"});
  const auto ua = g.add(Op::kUnshard, 0, {}).value();
  const auto ub = g.add(Op::kUnshard, 1, {}).value();
  const auto fa = g.add(Op::kForward, 0, {{ua, EdgeKind::kData}}).value();
  g.add(Op::kForward, 1, {{ub, EdgeKind::kData}, {fa, EdgeKind::kData}}).value();
  const auto s = g.schedule({10, 10, 100, 100});
  EXPECT_EQ(s[1].start, 10);  // its lane runs the first unshard until 10
  EXPECT_EQ(s[2].start, 10);  // runs beside the second unshard
  EXPECT_EQ(s[3].start, 110);
}

TEST(StepGraph, ArrivesAsItWasSentAndHostileBytesAreRefused) {
  StepGraph g({"a", ""});
  const auto u = g.add(Op::kUnshard, 1, {}, 0, true).value();
  g.add(Op::kBackward, 1, {{u, EdgeKind::kMemory}}, 2, true).value();
  const auto back = StepGraph::decode(g.encode()).value();
  EXPECT_EQ(back.nodes(), g.nodes());
  EXPECT_EQ(back.units(), g.units());
  Bytes bad = g.encode();
  int refused = 0;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    bad.data()[i] ^= std::byte{0xff};
    refused += !StepGraph::decode(bad);
    bad.data()[i] ^= std::byte{0xff};
  }
  EXPECT_GT(refused, 0);
}

// The trace of a step of a root with two inner blocks. Each communication takes 10 us, each compute 100; the root computes for
// `root_between` between the blocks.
std::vector<TraceEvent> traced(double root_between = 1) {
  std::vector<TraceEvent> t;
  double now = 0;
  const auto boundary = [&](bool backward, bool begin, int unit) {
    t.push_back({Boundary{backward, begin, unit}, {}, unit, backward, {now, now}});
  };
  const auto node = [&](Op op, int unit, bool backward) {
    t.push_back({{}, op, unit, backward, {now, now + 10}});
    now += 10;
  };
  node(Op::kUnshard, 0, false);
  boundary(false, true, 0);
  now += 100;
  for (int u : {1, 2}) {
    node(Op::kUnshard, u, false);
    boundary(false, true, u);
    now += 100;
    boundary(false, false, u);
    node(Op::kReshard, u, false);
    if (u == 1) now += root_between;
  }
  now += 100;
  boundary(false, false, 0);
  boundary(true, true, 0);
  now += 100;
  for (int u : {2, 1}) {
    node(Op::kUnshard, u, true);
    boundary(true, true, u);
    now += 100;
    boundary(true, false, u);
    node(Op::kReduceScatter, u, true);
    node(Op::kReshard, u, true);
  }
  now += 50;
  boundary(true, false, 0);
  node(Op::kReduceScatter, 0, true);
  node(Op::kOptimizerUpdate, -1, false);
  return t;
}

std::vector<std::string> labels(const Plan& plan) {
  std::vector<std::string> out;
  for (const auto& n : plan.graph().nodes()) out.push_back(plan.graph().label(n));
  return out;
}

TEST(Plan, ATracedStepBecomesAGraphWithItsPasses) {
  const auto plan = Plan::from_trace({"", "a", "b"}, traced(), {.prefetch = {.depth = 1}});
  EXPECT_EQ(labels(plan),
            (std::vector<std::string>{
                "unshard(root)",    "unshard(a)",           "forward(root)",     "unshard(b)",  "forward(a)",        "reshard(a)",
                "forward(b)",       "reshard(b)",           "forward(root#1)",   "unshard(b)",  "backward(root)",    "unshard(a)",
                "backward(b)",      "reduce_scatter(b)",    "reshard(b)",        "backward(a)", "reduce_scatter(a)", "reshard(a)",
                "backward(root#1)", "reduce_scatter(root)", "optimizer_update()"}));
}

TEST(Plan, PrefetchDecidesHowFarAheadAUnitIsUnsharded) {
  const auto start_of = [](int prefetch, const std::string& what) {
    const auto plan = Plan::from_trace({"", "a", "b"}, traced(), {.prefetch = {.depth = prefetch}});
    const auto spans = plan.graph().schedule(plan.durations());
    const auto all = labels(plan);
    return spans[static_cast<std::size_t>(std::find(all.begin(), all.end(), what) - all.begin())].start;
  };
  const auto plan = Plan::from_trace({"", "a", "b"}, traced(), {.prefetch = {.depth = 1}});
  EXPECT_LT(start_of(1, "unshard(b)"), start_of(1, "forward(a)") + 100);  // begins while a computes
  EXPECT_GE(start_of(0, "unshard(b)"), start_of(0, "forward(a)") + 100);  // on demand: begins after a has computed
  EXPECT_LT(start_of(2, "unshard(b)"), start_of(2, "forward(a)"));
}

TEST(Plan, SchedulesTheUnshardsAheadOfEachBoundary) {
  const auto plan = Plan::from_trace({"", "a", "b"}, traced(), {.prefetch = {.depth = 1}});
  const auto at = [&](std::size_t boundary) {
    std::vector<int> out;
    for (const auto& u : plan.schedule()->ahead[boundary]) out.push_back(u.backward ? -u.unit : u.unit);
    return out;
  };
  ASSERT_EQ(plan.boundaries().size(), 12u);
  EXPECT_EQ(at(0), std::vector{1});  // the root's forward begins: a; the root has its lease
  EXPECT_EQ(at(1), std::vector{2});  // the forward of a begins: b
  EXPECT_EQ(at(2), std::vector<int>());
  EXPECT_EQ(at(8), std::vector<int>());
  EXPECT_EQ(plan.graph().label(plan.graph().nodes()[static_cast<std::size_t>(plan.compute_after(1))]), "forward(a)");
}

TEST(Plan, AnUpdateInBackwardStandsWhereItRan) {
  auto trace = traced();
  const auto b_reduced =
      std::find_if(trace.begin(), trace.end(), [](const TraceEvent& e) { return e.op == Op::kReduceScatter && e.unit == 2; });
  ASSERT_NE(b_reduced, trace.end());
  trace.insert(b_reduced + 1, TraceEvent{{}, Op::kOptimizerUpdate, 2, false, b_reduced->span});
  const auto plan = Plan::from_trace({"", "a", "b"}, trace, {});
  const auto all = labels(plan);
  const auto update = std::find(all.begin(), all.end(), "optimizer_update(b)");
  ASSERT_NE(update, all.end());
  EXPECT_LT(update, std::find(all.begin(), all.end(), "backward(a)"));
  const auto& node = plan.graph().nodes()[static_cast<std::size_t>(update - all.begin())];
  ASSERT_EQ(node.after.size(), 1u);
  EXPECT_EQ(plan.graph().label(plan.graph().nodes()[static_cast<std::size_t>(node.after[0].from)]), "reduce_scatter(b)");
}

TEST(Plan, ExistsBeforeTheFirstStepWithAKnownForward) {
  const std::vector<Boundary> forward = {{false, true, 0}, {false, true, 1},  {false, false, 1},
                                         {false, true, 2}, {false, false, 2}, {false, false, 0}};
  const auto plan = Plan::from_trace({"", "a", "b"}, expected_trace(forward, {false, true, true}), {.min_part = 0.5});
  const auto traced_one = Plan::from_trace({"", "a", "b"}, traced(), {});
  const auto found = labels(plan);
  EXPECT_EQ(std::count(found.begin(), found.end(), "unshard(a)"), 2);
  EXPECT_EQ(std::count(found.begin(), found.end(), "unshard(root)"), 1);
  EXPECT_EQ(std::count(found.begin(), found.end(), "reduce_scatter(b)"), 1);
  EXPECT_EQ(found.back(), "optimizer_update()");
  EXPECT_EQ(plan.boundaries(), traced_one.boundaries());
}

TEST(Plan, AUnitThatComputesBetweenItsChildrenHasANodeForIt) {
  const auto none = labels(Plan::from_trace({"", "a", "b"}, traced(1), {}));
  EXPECT_EQ(std::find(none.begin(), none.end(), "forward(root#2)"), none.end());
  const auto some = labels(Plan::from_trace({"", "a", "b"}, traced(400), {}));
  EXPECT_NE(std::find(some.begin(), some.end(), "forward(root#2)"), some.end());
}

TEST(Plan, WhereNoDurationCountsEachBatchOfAStepHasTheSameUnshardsAhead) {
  const auto ahead = [](double root_between) {
    std::vector<TraceEvent> batches;
    for (int batch = 0; batch < 3; ++batch) {
      for (TraceEvent e : traced(root_between)) {
        if (e.op == Op::kOptimizerUpdate && !e.boundary) continue;
        e.span = {e.span.start + batch * 1e5, e.span.end + batch * 1e5};
        batches.push_back(e);
      }
    }
    const auto plan = Plan::from_trace({"", "a", "b"}, batches, {.prefetch = {.depth = 1}, .min_part = 2});
    std::vector<std::vector<int>> out;
    for (const auto& units : plan.schedule()->ahead) {
      out.emplace_back();
      for (const auto& u : units) out.back().push_back(u.backward ? -u.unit : u.unit);
    }
    return out;
  };
  const auto found = ahead(1);
  ASSERT_EQ(found.size(), 36u);
  for (std::size_t batch = 0; batch < 3; ++batch) {
    EXPECT_EQ(found[12 * batch + 1], std::vector{2}) << "the forward of a begins in batch " << batch;
    EXPECT_EQ(found[12 * batch + 7], std::vector{-1}) << "the backward of b begins in batch " << batch;
  }
  EXPECT_EQ(ahead(4000), found);
}

TEST(StepGraph, IsDrawnWithPlannedAndMeasuredLanes) {
  const auto plan = Plan::from_trace({"", "a", "b"}, traced(), {});
  const auto planned = plan.graph().schedule(plan.durations());
  const auto trace = nlohmann::json::parse(plan.graph().perfetto(planned, planned, 1));
  int spans = 0;
  for (const auto& e : trace["traceEvents"]) spans += e["ph"] == "X";
  EXPECT_EQ(spans, 2 * static_cast<int>(plan.graph().nodes().size()));
  const std::string table = plan.graph().table(planned, {});
  EXPECT_NE(table.find("unshard(a)"), std::string::npos);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + static_cast<int>(plan.graph().nodes().size()));
}

}  // namespace
}  // namespace shoal::fsdp
