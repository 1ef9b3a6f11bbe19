#include "fsdp/graph/passes/passes.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "fsdp/graph/order.h"
#include "fsdp/graph/runnable.h"

namespace shoal::fsdp {
namespace {

using Labels = std::vector<std::string>;

Edge data(std::int32_t from) { return {from, EdgeKind::kData}; }
Edge order(std::int32_t from) { return {from, EdgeKind::kOrder}; }

// A step over consecutive units, with unshards on demand and no kept leases: the input of passes.
StepGraph plain(const Labels& units) {
  StepGraph g(units);
  const auto add = [&](Op op, std::int32_t unit, std::vector<Edge> after, bool backward = false) {
    return g.add(op, unit, std::move(after), 0, backward).value();
  };
  const auto n = static_cast<std::int32_t>(units.size());
  std::int32_t x = -1;
  std::vector<Edge> reduced;
  for (std::int32_t u = 0; u < n; ++u) {
    std::vector<Edge> after = {data(add(Op::kUnshard, u, x < 0 ? std::vector<Edge>() : std::vector{order(x)}))};
    if (x >= 0) after.push_back(data(x));
    x = add(Op::kForward, u, after);
    add(Op::kReshard, u, {order(x)});
  }
  std::int32_t grad = add(Op::kForward, -1, {data(x)});
  for (std::int32_t u = n - 1; u >= 0; --u) {
    const auto w = add(Op::kUnshard, u, {order(grad)}, true);
    grad = add(Op::kBackward, u, {data(w), data(grad)}, true);
    reduced.push_back(data(add(Op::kReduceScatter, u, {data(grad)}, true)));
    add(Op::kReshard, u, {order(grad)}, true);
  }
  const auto commit = add(Op::kCommit, -1, reduced);
  for (std::int32_t u = 0; u < n; ++u) add(Op::kOptimizerUpdate, u, {order(commit)});
  return g;
}

Labels labels(const StepGraph& g) {
  Labels out;
  for (const auto& n : g.nodes()) out.push_back(g.label(n));
  return out;
}

std::ptrdiff_t at(const StepGraph& g, const std::string& label, int nth = 0) {
  const auto all = labels(g);
  auto it = all.begin();
  for (; (it = std::find(it, all.end(), label)) != all.end() && nth > 0; ++it, --nth) {
  }
  EXPECT_NE(it, all.end()) << label;
  return it - all.begin();
}

// The edge between two nodes, by their labels.
std::optional<EdgeKind> edge(const StepGraph& g, const std::string& from, const std::string& to) {
  for (const auto& e : g.nodes()[static_cast<std::size_t>(at(g, to))].after) {
    if (e.from == at(g, from)) return e.kind;
  }
  return std::nullopt;
}

// Checks a pass's result: it is still runnable, and each node names its origin.
StepGraph made(const StepGraph& before, Result<Rewritten> after) {
  EXPECT_TRUE(after) << after.error().to_string();
  const auto checked = check_runnable(after->graph);
  EXPECT_TRUE(checked) << checked.error().to_string() << "\n" << after->graph.table({}, {});
  EXPECT_EQ(after->from.size(), after->graph.nodes().size());
  for (std::size_t i = 0; i < after->from.size(); ++i) {
    if (after->from[i] < 0) continue;
    const auto& was = before.nodes()[static_cast<std::size_t>(after->from[i])];
    EXPECT_EQ(after->graph.nodes()[i].op, was.op);
    EXPECT_TRUE(is_for(after->graph.nodes()[i], was.unit));
  }
  return after->graph;
}

const StepGraph kThree = plain({"a", "b", "c"});

TEST(Prefetch, UnshardsBeginThatManyComputeNodesAhead) {
  for (int depth : {0, 1, 2, 5}) {
    const auto g = made(kThree, prefetch(kThree, {.depth = depth, .lists = {}}));
    Labels compute;
    for (const auto& n : g.nodes()) {
      if (reads_unit(n) || (n.op == Op::kForward)) compute.push_back(g.label(n));
    }
    const auto reader = std::find(compute.begin(), compute.end(), "forward(c)") - compute.begin();
    const auto issue = compute[static_cast<std::size_t>(std::max<std::ptrdiff_t>(0, reader - depth))];
    EXPECT_LT(at(g, "unshard(c)"), at(g, issue)) << depth;
    if (depth < 2) {
      EXPECT_GT(at(g, "unshard(c)"), at(g, compute[static_cast<std::size_t>(reader - depth - 1)])) << depth;
    }
  }
  EXPECT_FALSE(prefetch(kThree, {.depth = -1, .lists = {}}));
}

TEST(Prefetch, NeverTakesALeaseBeforeTheLastOneEnds) {
  const auto g = made(kThree, prefetch(kThree, {.depth = 100, .lists = {}}));
  for (const char* unit : {"a", "b", "c"}) {
    EXPECT_GT(at(g, "unshard(" + std::string(unit) + ")", 1), at(g, "reshard(" + std::string(unit) + ")")) << unit;
  }
}

TEST(Prefetch, AUnitsOwnListComesBeforeTheDepth) {
  const auto g = made(kThree, prefetch(kThree, {.depth = 0, .lists = {{0, false, {1, 2}}, {2, true, {0}}}}));
  EXPECT_LT(at(g, "unshard(c)"), at(g, "forward(a)"));
  EXPECT_LT(at(g, "unshard(b)"), at(g, "forward(a)"));
  EXPECT_LT(at(g, "unshard(a)", 1), at(g, "backward(c)"));
  EXPECT_GT(at(g, "unshard(b)", 1), at(g, "backward(c)"));
}

TEST(Reshard, KeepsAUnitOrDropsItPerUnit) {
  const auto kept = made(kThree, reshard(kThree, {true, false, true}));
  const auto all = labels(kept);
  EXPECT_EQ(std::count(all.begin(), all.end(), "unshard(b)"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "reshard(b)"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "unshard(a)"), 2);
  EXPECT_EQ(edge(kept, "unshard(b)", "backward(b)"), EdgeKind::kData);
  const auto dropped = made(kept, reshard(kept, {true, true, true}));
  auto again = labels(dropped), first = labels(kThree);
  std::sort(again.begin(), again.end());
  std::sort(first.begin(), first.end());
  EXPECT_EQ(again, first);
  EXPECT_FALSE(reshard(kThree, {true}));
}

TEST(Accumulate, ReducesInTheLastMicroBatchOrInEach) {
  for (const bool each : {false, true}) {
    const auto g = made(kThree, accumulate(kThree, {3, each}));
    int reductions = 0, losses = 0, updates = 0;
    for (const auto& n : g.nodes()) {
      reductions += n.op == Op::kReduceScatter;
      losses += n.op == Op::kForward && n.unit < 0;
      updates += n.op == Op::kOptimizerUpdate;
      if (n.op == Op::kReduceScatter && !each) {
        EXPECT_EQ(n.micro, 2);
      }
    }
    EXPECT_EQ(reductions, each ? 9 : 3);
    EXPECT_EQ(losses, 3);
    EXPECT_EQ(updates, 3);
    EXPECT_EQ(num_micro_batches(g), 3);
    EXPECT_FALSE(accumulate(g, {2, false}));
  }
  EXPECT_FALSE(accumulate(kThree, {0, false}));
}

TEST(Recompute, ComesBetweenTheUnitsUnshardAndItsBackward) {
  const auto g = made(kThree, recompute(kThree, {1}));
  EXPECT_EQ(at(g, "backward(b)"), at(g, "recompute(b)") + 1);
  EXPECT_GT(at(g, "recompute(b)"), at(g, "unshard(b)", 1));
  EXPECT_EQ(input_of(g, g.nodes()[static_cast<std::size_t>(at(g, "recompute(b)"))]), at(g, "forward(a)"));
  EXPECT_FALSE(recompute(g, {1}));
}

TEST(Bucket, SmallNeighboursAreUnshardedAndReducedTogether) {
  const auto g = made(kThree, bucket(kThree, {10, 10, 100}, 50));
  const auto all = labels(g);
  EXPECT_EQ(std::count(all.begin(), all.end(), "unshard(a+b)"), 2);
  EXPECT_EQ(std::count(all.begin(), all.end(), "reshard(a+b)"), 2);
  EXPECT_EQ(std::count(all.begin(), all.end(), "reduce_scatter(b+a)"), 0);
  EXPECT_EQ(std::count(all.begin(), all.end(), "reduce_scatter(a+b)"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "unshard(c)"), 2);
  EXPECT_EQ(labels(made(kThree, bucket(kThree, {10, 10, 100}, 15))), labels(kThree));  // two units exceed the bucket
  EXPECT_EQ(labels(made(kThree, bucket(kThree, {10, 50, 10}, 50))), labels(kThree));   // a and c are no neighbours
  const auto mixed = made(kThree, reshard(kThree, {true, false, true}));
  EXPECT_EQ(labels(made(mixed, bucket(mixed, {10, 10, 100}, 50))), labels(mixed));  // a and b have different lease patterns
}

TEST(ClipNorm, ComesBetweenTheLastReductionAndAllUpdates) {
  const auto g = made(kThree, clip_norm(kThree, 0.5));
  const Order order(g);
  const auto& clip = g.nodes()[static_cast<std::size_t>(at(g, "clip_norm()"))];
  EXPECT_EQ(clip.value, 0.5);
  for (const auto& n : g.nodes()) {
    if (n.op == Op::kReduceScatter) {
      EXPECT_TRUE(order.before(n, clip));
    }
    if (n.op == Op::kOptimizerUpdate) {
      EXPECT_TRUE(order.before(clip, n));
      EXPECT_EQ(edge(g, "clip_norm()", g.label(n)), EdgeKind::kData);
    }
  }
  EXPECT_FALSE(clip_norm(g, 1));
  EXPECT_FALSE(clip_norm(kThree, 0));
}

TEST(OptimizerInBackward, UpdatesAUnitOnceItsGradientsAreReduced) {
  const auto g = made(kThree, optimizer_in_backward(kThree));
  EXPECT_GT(at(g, "optimizer_update(c)"), at(g, "backward(b)"));  // backward(b) hides the reduction of c
  EXPECT_LT(at(g, "optimizer_update(c)"), at(g, "backward(a)"));
  EXPECT_LT(at(g, "optimizer_update(a)"), at(g, "commit()"));
  const auto clipped = made(kThree, clip_norm(kThree, 1));
  const auto refused = optimizer_in_backward(clipped);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("known only when all are reduced"), std::string::npos);
  EXPECT_FALSE(clip_norm(g, 1));
  const auto many = made(kThree, accumulate(kThree, {2, true}));
  const auto late = made(many, optimizer_in_backward(many));
  EXPECT_GT(at(late, "optimizer_update(c)"), at(late, "backward(c)[1]"));
}

TEST(Offload, FetchesAUnitsStateWhileTheOneBeforeIsUpdated) {
  const auto g = made(kThree, offload(kThree, {0, 1, 2}));
  const Order order(g);
  const auto node = [&](const std::string& label) { return g.nodes()[static_cast<std::size_t>(at(g, label))]; };
  EXPECT_LT(at(g, "fetch(b)"), at(g, "optimizer_update(a)"));
  EXPECT_TRUE(order.before(node("fetch(b)"), node("optimizer_update(b)")));
  EXPECT_TRUE(order.before(node("offload(a)"), node("fetch(c)")));  // at most two units' state lies in memory
  EXPECT_EQ(edge(g, "offload(a)", "fetch(c)"), EdgeKind::kMemory);
  EXPECT_FALSE(order.before(node("optimizer_update(a)"), node("fetch(b)")));
  EXPECT_TRUE(order.before(node("backward(b)"), node("fetch(a)")));  // the fetch does not begin with the step
  EXPECT_FALSE(offload(g, {0}));
}

TEST(Fit, ReshardsNoMoreUnitsThanTheBudgetAsks) {
  const auto six = plain({"a", "b", "c", "d", "e", "f"});
  const std::vector<std::size_t> unit(6, 640);
  const auto all = fit(six, {.bytes = 100'000, .fixed_bytes = 1000, .unsharded_bytes = unit}).value();
  EXPECT_EQ(all.reshard_after_forward, std::vector<bool>(6, false));
  EXPECT_EQ(all.prefetch.depth, 3);
  EXPECT_EQ(all.bytes, 1000u + 6 * 640);
  const auto some = fit(six, {.bytes = 1000 + 4 * 640, .fixed_bytes = 1000, .unsharded_bytes = unit}).value();
  EXPECT_LE(some.bytes, 1000u + 4 * 640);
  EXPECT_TRUE(some.reshard_after_forward[0]);
  EXPECT_FALSE(some.reshard_after_forward[5]);
  PassOptions o;
  o.prefetch = some.prefetch;
  o.reshard_after_forward = some.reshard_after_forward;
  EXPECT_EQ(leased_bytes(made(six, apply(six, o)), unit) + 1000, some.bytes);
  const auto least = fit(six, {.bytes = 1000 + 640, .fixed_bytes = 1000, .unsharded_bytes = unit});
  ASSERT_TRUE(least) << least.error().to_string();
  EXPECT_EQ(least->prefetch.depth, 0);
  const auto none = fit(six, {.bytes = 1600, .fixed_bytes = 1000, .unsharded_bytes = unit});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), Code::kResourceExhausted);
  EXPECT_NE(none.error().message().find("needs at least 1640 bytes"), std::string::npos) << none.error().message();
}

TEST(Apply, RunsThePassesInTheOrderInWhichTheyFit) {
  PassOptions o;
  o.prefetch.depth = 2;
  o.reshard_after_forward = {true, true, false};
  o.recompute = {0, 1};
  o.accumulate = {2, true};
  o.unit_bytes = {1, 1, 100};
  o.bucket_bytes = 10;
  o.optimizer_in_backward = true;
  o.offload = {2};
  const auto g = made(kThree, apply(kThree, o));
  EXPECT_LT(at(g, "unshard(c)"), at(g, "forward(a)"));
  EXPECT_EQ(at(g, "backward(a)[1]"), at(g, "recompute(a)[1]") + 1);
  EXPECT_GT(at(g, "reduce_scatter(a+b)[1]"), at(g, "backward(a)[1]"));
  o.max_norm = 1;
  EXPECT_FALSE(apply(kThree, o));
  o.optimizer_in_backward = false;
  made(kThree, apply(kThree, o));
}

}  // namespace
}  // namespace shoal::fsdp
