// Golden transcripts: what follows each event of a program, as text. An event stands at the margin, its actions (>) below it in order.
// With several ranks each line begins with the rank. To read a changed one: the test writes it to its undeclared outputs.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "fsdp/step/simulated/ranks.h"
#include "runtime/core/golden.h"

namespace shoal::fsdp {
namespace {

using EventKind = SimulatedEvent::Kind;
using AfterForward = UnitRules::AfterForward;

class TranscriptTest : public testing::Test {
 protected:
  static constexpr int kRoot = 0, kA = 1, kB = 2;

  // A model of a root with parameters of its own and two blocks, a and b.
  void story(const std::string& title, int world_size = 1, bool learns = false, StepMachine::Group kind = {}) {
    text_ += (text_.empty() ? "== " : "\n== ") + title + " ==\n";
    std::vector<StepMachine::UnitOptions> units;
    std::vector<std::vector<StepMachine::Group>> groups;
    for (const std::string name : {"", "a", "b"}) {
      units.push_back({name, name.empty(), std::make_shared<UnitRules>()});
      kind.index = static_cast<int>(groups.size());
      groups.push_back({kind});
    }
    ranks_ = std::make_unique<SimulatedRanks>(
        SimulatedRanks::Options{.world_size = world_size, .learns = learns, .refusals_are_faults = false}, units, groups);
    ranks_->record([this, world_size](int rank, const std::string& line) {
      const std::string prefix = world_size > 1 ? fmt::format("{} ", rank) : "";
      text_ += prefix + (line.starts_with(">") || line.starts_with("!") ? "  " : "") + line + "\n";
    });
  }
  SimulatedRanks& ranks() { return *ranks_; }
  UnitRules& rules(int unit) { return ranks().rules(0, unit); }

  void run(EventKind kind, int unit = kAllUnits, int rank = 0) { ranks().run(rank, {.kind = kind, .unit = unit}); }
  void forward_of(int unit, int rank = 0) {
    run(EventKind::kForwardBegin, unit, rank);
    run(EventKind::kCompute, unit, rank);
    run(EventKind::kForwardEnd, unit, rank);
  }
  void backward_of(int unit, int rank = 0) {
    run(EventKind::kBackwardBegin, unit, rank);
    run(EventKind::kCompute, unit, rank);
    run(EventKind::kGradient, unit, rank);
    run(EventKind::kBackwardEnd, unit, rank);
  }
  void forward(const std::vector<int>& blocks = {kA, kB}, int rank = 0) {
    run(EventKind::kForwardBegin, kRoot, rank);
    for (const int unit : blocks) forward_of(unit, rank);
    run(EventKind::kForwardEnd, kRoot, rank);
  }
  // Autograd ends the root's backward with the pass: its input needs no gradient.
  void backward(const std::vector<int>& blocks = {kB, kA}, int rank = 0) {
    run(EventKind::kBackwardBegin, kRoot, rank);
    for (const int unit : blocks) backward_of(unit, rank);
    run(EventKind::kGradient, kRoot, rank);
    run(EventKind::kPassEnds, kAllUnits, rank);
  }
  void step_of(int rank) {
    forward({kA, kB}, rank);
    backward({kB, kA}, rank);
    run(EventKind::kOptimizer, kAllUnits, rank);
    run(EventKind::kStepEnds, kAllUnits, rank);
  }
  // The ranks take turns, one action each.
  void runs() {
    int turn = 0;
    EXPECT_TRUE(ranks().run_all([&](int n) { return turn++ % n; }));
    EXPECT_EQ(ranks().fault(), "");
  }
  void ends_as_in(const std::string& name) { expect_golden(text_, "fsdp/step/testdata/" + name); }

  std::unique_ptr<SimulatedRanks> ranks_;
  std::string text_;
};

TEST_F(TranscriptTest, AStep) {
  story("A step: forward, backward, optimizer");
  step_of(0);
  runs();
  story("Two forwards before their backwards read one version: the first pass does not leave it");
  forward();
  forward();
  backward();
  backward();
  runs();
  story("A root that keeps its lease, and blocks that do too");
  rules(kA).after_forward = rules(kB).after_forward = AfterForward::kKeep;
  forward();
  backward();
  runs();
  ends_as_in("step.txt");
}

TEST_F(TranscriptTest, Schedules) {
  story("The second step unshards each unit where the one before it begins; in the third, b does not run, so the step leaves the schedule",
        1, /*learns=*/true);
  step_of(0);
  step_of(0);
  forward({kA});
  backward({kA});
  run(EventKind::kOptimizer);
  run(EventKind::kStepEnds);
  runs();
  ends_as_in("schedules.txt");
}

TEST_F(TranscriptTest, Devices) {
  constexpr StepMachine::Group kDevices{.collectives = true, .gathers = true};
  story("A step on devices: each gather begins with its unit's lease, and each reduction ends before the next one's input is packed", 1,
        false, kDevices);
  step_of(0);
  runs();
  story("The second step begins each gather beside the unit before; in the third, b does not run, and its gather is dropped", 1,
        /*learns=*/true, kDevices);
  step_of(0);
  step_of(0);
  forward({kA});
  backward({kA});
  run(EventKind::kOptimizer);
  run(EventKind::kStepEnds);
  runs();
  story("Replicas: a reduction over them begins where the one over shards ends, and lies beside the next backward", 1, false,
        {.collectives = true, .gathers = true, .replicated = true});
  step_of(0);
  runs();
  story("A list of the program: a and b are gathered in the forward of the root, a also in the backward of b", 1, false, kDevices);
  rules(kRoot).forward_prefetch = {kA, kB};
  rules(kB).backward_prefetch = {kA};
  step_of(0);
  runs();
  story("A gather by hand stays valid until the forward of its unit; one that no forward uses is dropped by reshard()", 1, false, kDevices);
  run(EventKind::kBeginUnshard, kA);
  run(EventKind::kBeginUnshard, kB);
  run(EventKind::kReshard, kB);
  forward({kA});
  runs();
  story("The optimizer in backward updates a unit once its reduction has ended", 1, false, kDevices);
  ranks().machine(0).set_optimizer_in_backward(true);
  step_of(0);
  runs();
  ends_as_in("devices.txt");
}

TEST_F(TranscriptTest, Units) {
  story("A checkpoint: the forward of a runs again in its backward");
  forward();
  run(EventKind::kBackwardBegin, kRoot);
  backward_of(kB);
  ranks().run(0, {.kind = EventKind::kForwardBegin, .unit = kA, .recomputed = true});
  run(EventKind::kCompute, kA);
  ranks().run(0, {.kind = EventKind::kForwardEnd, .unit = kA, .recomputed = true});
  backward_of(kA);
  run(EventKind::kGradient, kRoot);
  run(EventKind::kPassEnds);
  runs();
  story("A checkpoint whose forward runs again after its unit's backward has begun: the lease stays");
  forward();
  run(EventKind::kBackwardBegin, kRoot);
  backward_of(kB);
  run(EventKind::kBackwardBegin, kA);
  ranks().run(0, {.kind = EventKind::kForwardBegin, .unit = kA, .recomputed = true});
  ranks().run(0, {.kind = EventKind::kForwardEnd, .unit = kA, .recomputed = true});
  run(EventKind::kCompute, kA);
  run(EventKind::kGradient, kA);
  run(EventKind::kBackwardEnd, kA);
  run(EventKind::kGradient, kRoot);
  run(EventKind::kPassEnds);
  runs();
  story("b runs before a, in a checkpoint without gradients: it is not taken for a unit that no forward ran");
  run(EventKind::kForwardBegin, kRoot);
  ranks().run(0, {.kind = EventKind::kForwardBegin, .unit = kB, .training = false});
  ranks().run(0, {.kind = EventKind::kForwardEnd, .unit = kB, .training = false});
  forward_of(kA);
  run(EventKind::kForwardEnd, kRoot);
  run(EventKind::kBackwardBegin, kRoot);
  backward_of(kA);
  ranks().run(0, {.kind = EventKind::kForwardBegin, .unit = kB, .recomputed = true});
  ranks().run(0, {.kind = EventKind::kForwardEnd, .unit = kB, .recomputed = true});
  backward_of(kB);
  run(EventKind::kGradient, kRoot);
  run(EventKind::kPassEnds);
  runs();
  story("A frozen unit has no backward, and takes part in reductions at the end of the pass");
  forward();
  backward({kB});
  runs();
  story("A unit that a forward uses twice: its gradients are reduced once");
  forward({kA, kB, kA});
  run(EventKind::kBackwardBegin, kRoot);
  run(EventKind::kBackwardBegin, kA);
  run(EventKind::kCompute, kA);
  run(EventKind::kGradient, kA);
  backward_of(kB);
  backward_of(kA);
  run(EventKind::kGradient, kRoot);
  run(EventKind::kPassEnds);
  runs();
  story("A unit whose backward a pass leaves and enters again: its reductions do not overlap");
  forward({kA, kB, kA});
  run(EventKind::kBackwardBegin, kRoot);
  backward_of(kA);
  backward_of(kB);
  backward_of(kA);
  run(EventKind::kGradient, kRoot);
  run(EventKind::kPassEnds);
  runs();
  story("Lists of units to unshard ahead");
  rules(kA).forward_prefetch = {kB};
  rules(kB).backward_prefetch = {kA};
  forward();
  backward();
  runs();
  story("reshard_after_forward=n, and a unit whose backward needs no parameters");
  rules(kA).after_forward = AfterForward::kSmallerMesh;
  rules(kB).unshard_in_backward = false;
  forward();
  backward();
  runs();
  ends_as_in("units.txt");
}

TEST_F(TranscriptTest, Accumulation) {
  story("A backward without synchronisation keeps gradients, the next one reduces them");
  for (const int unit : {kRoot, kA, kB}) rules(unit).reduces = false;
  forward();
  backward();
  runs();
  for (const int unit : {kRoot, kA, kB}) rules(unit).reduces = true;
  text_ += "a, b and the root reduce from now on\n";
  forward();
  backward();
  run(EventKind::kOptimizer);
  runs();
  story("A backward that is not the last one leaves the version readable");
  ranks().machine(0).set_last_backward(false);
  forward();
  backward();
  runs();
  text_ += "the next backward is the last\n";
  ranks().machine(0).set_last_backward(true);
  forward();
  backward();
  runs();
  story("The program ends the passes by hand");
  ranks().machine(0).set_finalized_by_hand(true);
  forward();
  backward();
  run(EventKind::kFinalize);
  runs();
  ends_as_in("accumulation.txt");
}

TEST_F(TranscriptTest, Replicas) {
  story("A mesh with replicas: the first backward reduces within the replica, the second one over all");
  for (const int unit : {kRoot, kA, kB}) {
    ranks().machine(0).set_group(unit, 0, {.index = unit, .replicated = true});
    rules(unit).everywhere = false;
  }
  forward();
  backward();
  runs();
  for (const int unit : {kRoot, kA, kB}) rules(unit).everywhere = true;
  text_ += "over all replicas from now on\n";
  forward();
  backward();
  runs();
  ends_as_in("replicas.txt");
}

TEST_F(TranscriptTest, OptimizerInBackward) {
  story("The optimizer in backward: a unit is updated when its reduction has ended");
  ranks().machine(0).set_optimizer_in_backward(true);
  forward();
  backward();
  runs();
  ends_as_in("optimizer_in_backward.txt");
}

TEST_F(TranscriptTest, Writes) {
  story("An evaluation leaves whole parameters behind a guard; a write shows the sharded ones");
  for (const EventKind kind : {EventKind::kForwardBegin, EventKind::kForwardEnd})
    ranks().run(0, {.kind = kind, .unit = kRoot, .training = false});
  run(EventKind::kWrite);
  forward();
  runs();
  story("The program unshards a by hand, and then evaluates it alone");
  run(EventKind::kUnshard, kA);
  run(EventKind::kCompute, kA);
  run(EventKind::kReshard, kA);
  for (const EventKind kind : {EventKind::kForwardBegin, EventKind::kForwardEnd})
    ranks().run(0, {.kind = kind, .unit = kA, .training = false});
  runs();
  story("A write between a forward and its backward opens the window; the backward is refused by its version");
  forward();
  run(EventKind::kWrite);
  run(EventKind::kBackwardBegin, kRoot);
  runs();
  ends_as_in("writes.txt");
}

TEST_F(TranscriptTest, Exceptions) {
  story("In a forward: its hooks run, and the next step begins with the same version");
  run(EventKind::kForwardBegin, kRoot);
  run(EventKind::kForwardBegin, kA);
  run(EventKind::kRaise);
  run(EventKind::kStepEnds);
  step_of(0);
  runs();
  story("In a backward: the next forward drops the gradients first");
  forward();
  run(EventKind::kBackwardBegin, kRoot);
  backward_of(kB);
  run(EventKind::kBackwardBegin, kA);
  run(EventKind::kRaise);
  run(EventKind::kStepEnds);
  step_of(0);
  runs();
  ends_as_in("exceptions.txt");
}

TEST_F(TranscriptTest, Ranks) {
  story("No forward of rank 1 runs b: it takes part in b's reduction where rank 0 does", 2);
  forward();
  backward();
  forward({kA}, 1);
  backward({kA}, 1);
  runs();
  story("Rank 1 is late: rank 0 waits for its version, and at the end of the pass", 2);
  step_of(0);
  step_of(1);
  while (ranks().step(0)) {
  }
  while (!ranks().ended(1)) {
    if (!ranks().step(1)) break;
  }
  runs();
  story("Rank 1 has no more batches, behind a backward that kept its gradients: it takes part in rank 0's step", 2);
  for (const int unit : {kRoot, kA, kB}) ranks().rules(1, unit).reduces = false;
  forward({kA, kB}, 1);
  backward({kB, kA}, 1);
  run(EventKind::kJoin, kAllUnits, 1);
  step_of(0);
  run(EventKind::kJoin, kAllUnits, 0);
  runs();
  ends_as_in("ranks.txt");
}

TEST_F(TranscriptTest, AStepTakesAsLongAsThatOfTheSlowestRank) {
  story("One rank alone");
  step_of(0);
  runs();
  const double alone = ranks().now(0);
  story("Two ranks, of which the second one computes more", 2);
  step_of(0);
  run(EventKind::kForwardBegin, kRoot, 1);
  run(EventKind::kCompute, kRoot, 1);
  run(EventKind::kCompute, kRoot, 1);
  for (const int unit : {kA, kB}) forward_of(unit, 1);
  run(EventKind::kForwardEnd, kRoot, 1);
  backward({kB, kA}, 1);
  run(EventKind::kOptimizer, kAllUnits, 1);
  runs();
  EXPECT_EQ(ranks().now(1), alone + 2 * StepCosts().compute);
  EXPECT_EQ(ranks().now(0), ranks().now(1)) << "rank 0 has waited at the end of the pass";
}

TEST_F(TranscriptTest, Death) {
  story("Rank 1 dies in the middle of a step; ranks 0 and 2 are the next generation", 3);
  for (const int rank : {0, 2}) step_of(rank);
  forward({kA, kB}, 1);
  run(EventKind::kBackwardBegin, kRoot, 1);
  backward_of(kB, 1);
  run(EventKind::kDie, kAllUnits, 1);
  runs();
  text_ += "the survivors form the next generation, as ranks 0 and 1\n";
  ranks().next_generation();
  for (const int rank : {0, 1}) step_of(rank);
  runs();
  ends_as_in("death.txt");
}

// Two models of one program have a machine each: an event of one has no action in the other.
TEST_F(TranscriptTest, TwoRootsInTurns) {
  story("Two roots in turns: the first");
  forward();
  runs();
  auto first = std::move(ranks_);
  story("Two roots in turns: the second, between forward and backward of the first");
  forward();
  backward();
  runs();
  ranks_ = std::move(first);
  text_ += "\n== Two roots in turns: the first again ==\n";
  backward();
  runs();
  ends_as_in("two_roots.txt");
}

}  // namespace
}  // namespace shoal::fsdp
