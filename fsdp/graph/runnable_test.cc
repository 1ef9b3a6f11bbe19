#include "fsdp/graph/runnable.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fsdp/graph/progress.h"

namespace shoal::fsdp {
namespace {

constexpr std::int32_t kBatch = -1;

// A step over two units, written node by node; tests leave out or misplace nodes.
class Written {
 public:
  Written& add(Op op, std::int32_t unit, std::vector<Edge> after = {}) {
    EXPECT_TRUE(graph.add(op, unit, std::move(after)));
    return *this;
  }
  std::string wrong() const {
    const auto checked = check_runnable(graph);
    if (checked) return "";
    EXPECT_EQ(checked.error().reason(), "BadGraph");
    return checked.error().message();
  }
  StepGraph graph{{"a", "b"}};
};

Edge data(std::int32_t from) { return {from, EdgeKind::kData}; }
Edge order(std::int32_t from) { return {from, EdgeKind::kOrder}; }

Written forward() {
  Written w;
  w.add(Op::kUnshard, 0).add(Op::kUnshard, 1);                         // nodes 0 1
  w.add(Op::kForward, 0, {data(0)}).add(Op::kReshard, 0, {order(2)});  // nodes 2 3
  w.add(Op::kForward, 1, {data(1), data(2)});                          // node 4
  w.add(Op::kForward, -1, {data(4)});                                  // node 5, the loss
  return w;
}

Written backward() {
  Written w = forward();
  w.add(Op::kBackward, 1, {data(5)}).add(Op::kReduceScatter, 1, {data(6)}).add(Op::kReshard, 1, {order(6)});  // nodes 6 7 8
  w.add(Op::kUnshard, 0, {data(3)}).add(Op::kBackward, 0, {data(6), data(9)});                                // nodes 9 10
  w.add(Op::kReduceScatter, 0, {data(10)}).add(Op::kReshard, 0, {order(10)});                                 // nodes 11 12
  return w;
}

Written whole() {
  Written w = backward();
  w.add(Op::kCommit, -1, {data(7), data(11)});  // node 13
  return w.add(Op::kOptimizerUpdate, 0, {order(13)}).add(Op::kOptimizerUpdate, 1, {order(13)});
}

TEST(CheckRunnable, AcceptsAWholeStepAndOneWithoutUpdates) {
  EXPECT_EQ(whole().wrong(), "");
  EXPECT_EQ(backward().wrong(), "");
  EXPECT_EQ(forward().add(Op::kReshard, 1, {order(4)}).wrong(), "");
}

TEST(CheckRunnable, AReaderNeedsItsUnitUnsharded) {
  EXPECT_EQ(Written().add(Op::kForward, 0).wrong(), "forward(a) (node 0) has no unshard before it");
  EXPECT_EQ(Written().add(Op::kUnshard, 0).add(Op::kForward, 0).wrong(),
            "forward(a) (node 1) does not wait for unshard(a) (node 0): add an edge from that node");
  EXPECT_EQ(Written().add(Op::kUnshard, 0).add(Op::kForward, 0, {data(0)}).add(Op::kReshard, 0).wrong(),
            "reshard(a) (node 2) may end the lease while forward(a) (node 1) reads: add an edge from that node");
  Written again = forward();
  again.add(Op::kBackward, 1, {data(5)})
      .add(Op::kReduceScatter, 1, {data(6)})
      .add(Op::kReshard, 1, {order(6)})
      .add(Op::kBackward, 0, {data(6)});
  EXPECT_EQ(again.wrong(), "backward(a) (node 9) runs after reshard(a) (node 3): unshard again");
}

TEST(CheckRunnable, LeasesAreTakenAndGivenBackInTurn) {
  EXPECT_EQ(Written().add(Op::kUnshard, 0).add(Op::kUnshard, 0).wrong(),
            "unshard(a) (node 1) runs while unshard(a) (node 0) holds the lease: reshard before");
  EXPECT_EQ(Written().add(Op::kReshard, 0).wrong(), "reshard(a) (node 0) has no unshard before it");
  EXPECT_EQ(forward().wrong(), "unshard(b) (node 1) has no reshard: its lease would outlive the step");
}

TEST(CheckRunnable, AnEdgeOfOrderThroughOthersIsEnough) {
  Written w;
  w.add(Op::kUnshard, 0).add(Op::kUnshard, 1).add(Op::kForward, 0, {order(1)});  // the lane is in order: unshard(a) has ended
  w.add(Op::kForward, -1, {data(2)}).add(Op::kReshard, 1).add(Op::kReshard, 0, {order(3)});
  EXPECT_EQ(w.wrong(), "");
}

TEST(CheckRunnable, ABackwardReadsTheGradientOfItsForwardsOutput) {
  Written none = forward();
  EXPECT_EQ(none.add(Op::kBackward, 1).wrong(), "backward(b) (node 6) reads no gradient: neither the loss's nor another backward's");
  Written skipped = forward();
  skipped.add(Op::kUnshard, 0).add(Op::kBackward, 0, {data(5), data(6)});
  EXPECT_EQ(skipped.wrong(),
            "backward(a) (node 7) reads the gradient of forward(loss) (node 5), but forward(loss) (node 5) did not read the output of "
            "forward(a) (node 2)");
  EXPECT_EQ(Written().add(Op::kUnshard, 0).add(Op::kBackward, 0, {data(0)}).wrong(), "backward(a) (node 1) has no forward before it");
  Written unused = forward();
  unused.add(Op::kBackward, 1, {data(5)}).add(Op::kReshard, 1, {order(6)});
  EXPECT_EQ(unused.wrong(), "backward(b) (node 6) has no reduce_scatter: its gradients would be lost");
}

TEST(CheckRunnable, ALossIsThereOnceAndReadsAnOutput) {
  EXPECT_NE(Written().wrong().find("has no loss"), std::string::npos);
  EXPECT_EQ(Written().add(Op::kForward, -1).wrong(), "forward(loss) (node 0) reads no unit's output");
  EXPECT_EQ(forward().add(Op::kForward, -1, {data(4)}).wrong(), "forward(loss) (node 6) is a second loss, after forward(loss) (node 5)");
}

TEST(CheckRunnable, RowsAreWrittenAfterTheCommitOnly) {
  Written early = backward();
  EXPECT_EQ(early.add(Op::kOptimizerUpdate, 0).wrong(),
            "optimizer_update(a) (node 13) has neither a commit nor reduce_scatter(a) (node 11) before it: other ranks may still read the "
            "rows that "
            "it would write");
  Written loose = backward();
  EXPECT_EQ(loose.add(Op::kCommit, -1).add(Op::kOptimizerUpdate, 0).wrong(),
            "optimizer_update(a) (node 14) does not wait for commit() (node 13): add an edge from that node");
  EXPECT_EQ(whole().add(Op::kUnshard, 0).wrong(), "unshard(a) (node 16) runs after the commit, when parameters may be written");
  EXPECT_EQ(forward().add(Op::kCommit, -1).wrong(), "commit() (node 6) does not wait for forward(b) (node 4): add an edge from that node");
  EXPECT_EQ(forward().add(Op::kCommit, -1, {order(4)}).wrong(),
            "commit() (node 6) runs while unshard(b) (node 1) holds the lease: reshard before");
}

TEST(CheckRunnable, AnUpdateInBackwardIsTheLastThatTouchesItsUnit) {
  Written early = backward();
  early.add(Op::kOptimizerUpdate, 1, {data(7)}).add(Op::kOptimizerUpdate, 0, {data(11)});  // nodes 13 14
  EXPECT_EQ(early.wrong(), "");
  EXPECT_EQ(Written(early).add(Op::kCommit, -1, {order(14)}).wrong(), "");
  EXPECT_EQ(Written(early).add(Op::kCommit, -1, {order(10)}).wrong(),
            "commit() (node 15) does not wait for optimizer_update(a) (node 14): add an edge from that node");
  EXPECT_EQ(Written(early).add(Op::kUnshard, 1).wrong(),
            "unshard(b) (node 15) runs after optimizer_update(b) (node 13) has written the unit");
  Written late = forward();
  late.add(Op::kBackward, 1, {data(5)}).add(Op::kReduceScatter, 1, {data(6)}).add(Op::kOptimizerUpdate, 1, {data(7)});  // nodes 6 7 8
  EXPECT_EQ(late.add(Op::kRecompute, 1, {data(2)}).wrong(), "recompute(b) (node 9) runs after backward(b) (node 6), which needs it");
}

TEST(CheckRunnable, GradientsAreClippedWhenAllAreReducedAndUnused) {
  Node clip;
  clip.op = Op::kClipNorm;
  clip.value = 1;
  clip.after = {data(7), data(11)};
  Written clipped = backward();
  ASSERT_TRUE(clipped.graph.add(clip));  // node 13
  EXPECT_EQ(Written(clipped).add(Op::kOptimizerUpdate, 0, {data(11)}).wrong(),
            "optimizer_update(a) (node 14) does not wait for clip_norm() (node 13): add an edge from that node");
  EXPECT_EQ(Written(clipped).add(Op::kOptimizerUpdate, 0, {data(13)}).wrong(), "");
  Written updated = backward();
  updated.add(Op::kOptimizerUpdate, 1, {data(7)});
  ASSERT_TRUE(updated.graph.add(clip));
  EXPECT_EQ(updated.wrong(),
            "clip_norm() (node 14) runs after optimizer_update(b) (node 13): no unit can be updated before all are clipped");
}

TEST(CheckRunnable, FetchedStateIsUpdatedAndOffloadedInTheSameStep) {
  Written fetched = backward();
  fetched.add(Op::kCommit, -1, {data(7), data(11)}).add(Op::kFetch, 0, {order(13)});  // nodes 13 14
  EXPECT_EQ(Written(fetched).wrong(), "fetch(a) (node 14) has no update after it");
  Written updated = fetched;
  updated.add(Op::kOptimizerUpdate, 0, {order(13), data(14)});  // node 15
  EXPECT_EQ(updated.wrong(),
            "fetch(a) (node 14) has no offload after optimizer_update(a) (node 15): the next step would fetch older optimizer state");
  EXPECT_EQ(Written(updated).add(Op::kOffload, 1, {data(15)}).wrong(), "offload(b) (node 16) has no update before it");
  EXPECT_EQ(Written(updated).add(Op::kOffload, 0).wrong(),
            "offload(a) (node 16) does not wait for optimizer_update(a) (node 15): add an edge from that node");
  EXPECT_EQ(updated.add(Op::kOffload, 0, {data(15)}).wrong(), "");
}

TEST(CheckRunnable, AnUpdateBelongsToNoMicroBatch) {
  Written w = backward();
  w.add(Op::kCommit, -1, {data(7), data(11)});  // node 13
  for (const auto op : {Op::kOptimizerUpdate, Op::kFetch, Op::kOffload}) {
    Written wrong = w;
    Node node;
    node.op = op;
    node.unit = 0;
    node.micro = 1;
    node.after = {order(13)};
    ASSERT_TRUE(wrong.graph.add(node));
    EXPECT_EQ(wrong.wrong(), fmt::format("{}(a)[1] (node 14) belongs to the whole step, not to a micro-batch", op_name(op)));
  }
}

TEST(CheckRunnable, EveryMicroBatchHasItsLossAndTheLastGradientsAreReduced) {
  Written w = whole();
  Node extra;
  extra.op = Op::kForward;
  extra.micro = 2;
  extra.unit = -1;
  extra.after = {data(4)};
  Written other = forward();
  ASSERT_TRUE(other.graph.add(extra));
  EXPECT_EQ(other.wrong(), "forward(loss)[2] (node 6) reads the output of forward(b) (node 4), which belongs to another micro-batch");
}

TEST(CheckRunnable, UnsupportedNodesAreNamed) {
  const auto checked = check_runnable(Written().add(Op::kAllReduce, 0).graph);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code(), Code::kUnimplemented);
  EXPECT_EQ(Written().add(Op::kUnshard, -1).wrong(), "unshard() (node 0) needs a unit");
}

TEST(InputOf, IsTheBatchForTheFirstForward) {
  const auto graph = whole().graph;
  EXPECT_EQ(input_of(graph, graph.nodes()[2]), kBatch);
  EXPECT_EQ(input_of(graph, graph.nodes()[4]), 2);
  EXPECT_EQ(input_of(graph, graph.nodes()[10]), 6);
}

TEST(Progress, ALaneIsInOrderAndEdgesAreKept) {
  const auto graph = forward().graph;
  Progress p(graph);
  EXPECT_EQ(p.next(Lane::kCommunication), 0);
  EXPECT_EQ(p.next(Lane::kCompute), std::nullopt);
  p.begin(0);
  EXPECT_EQ(p.next(Lane::kCommunication), std::nullopt);  // a lane runs one node after the other
  p.end(0);
  EXPECT_EQ(p.next(Lane::kCommunication), 1);
}

TEST(Progress, ComputeGivesWayToPrefetchingThatComesBeforeIt) {
  const auto graph = forward().graph;
  Progress p(graph);
  p.begin(0);
  p.end(0);
  EXPECT_EQ(p.next(Lane::kCompute), std::nullopt);  // forward(a) gives way, because unshard(b) could begin
  p.begin(1);
  EXPECT_EQ(p.next(Lane::kCompute), 2);  // unshard(b) has begun: forward(a) runs beside it
  p.begin(2);
  p.end(1);
  EXPECT_EQ(p.next(Lane::kCommunication), std::nullopt);  // reshard(a) waits for forward(a)
}

TEST(Progress, EveryOrderOfLanesComesToTheEnd) {
  const auto graph = whole().graph;
  for (const bool compute_first : {true, false}) {
    Progress p(graph);
    std::size_t ended = 0;
    while (!p.finished(Lane::kCompute) || !p.finished(Lane::kCommunication)) {
      const auto first = compute_first ? Lane::kCompute : Lane::kCommunication;
      auto next = p.next(first);
      if (!next) next = p.next(compute_first ? Lane::kCommunication : Lane::kCompute);
      ASSERT_TRUE(next);
      p.begin(*next);
      p.end(*next);
      ++ended;
    }
    EXPECT_EQ(ended, graph.nodes().size());
  }
}

}  // namespace
}  // namespace shoal::fsdp
