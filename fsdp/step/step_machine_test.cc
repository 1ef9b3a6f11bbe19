// Single rules of the step machine that no transcript shows: models on several meshes, collectives, join, failures.
#include "fsdp/step/step_machine.h"

#include <optional>

#include <gtest/gtest.h>

#include "fsdp/step/executor.h"

namespace shoal::fsdp {
namespace {

using Kind = Action::Kind;
using Lines = std::vector<std::string>;

// Records the actions, and fails at the first one of a kind, if the test asks for that.
class Recorder final : public Executor {
 public:
  explicit Recorder(const StepMachine& machine) : machine_(machine) {}
  Result<void> run(const Action& a) override {
    if (a.kind == fails_at) {
      fails_at.reset();
      return fail(invalid_argument("the executor failed"));
    }
    lines.push_back(to_string(a, machine_.names()));
    return {};
  }
  Lines lines;
  std::optional<Kind> fails_at;

 private:
  const StepMachine& machine_;
};

class StepMachineTest : public testing::Test {
 protected:
  static constexpr int kRoot = 0, kA = 1, kB = 2;

  StepMachineTest() : machine_(options()), recorder_(machine_) { machine_.set_groups({{{}}, {{.index = 1}}, {{.index = 2}}}, 2); }

  std::vector<StepMachine::UnitOptions> options() {
    std::vector<StepMachine::UnitOptions> out;
    for (const std::string name : {"", "a", "b"}) {
      rules_.push_back(std::make_shared<UnitRules>());
      out.push_back({name, name.empty(), rules_.back()});
    }
    return out;
  }
  // Carries out an event's actions, and returns those whose names begin with one of these.
  Lines actions(const Result<Actions>& event, const Lines& names) {
    recorder_.lines.clear();
    const auto done = perform(machine_, recorder_, event);
    error_ = done ? "" : done.error().message();
    Lines out;
    for (const auto& line : recorder_.lines) {
      for (const auto& name : names) {
        if (line.starts_with(name)) out.push_back(line);
      }
    }
    return out;
  }
  void run(const Result<Actions>& event) { (void)actions(event, {}); }
  void forward(int unit, bool training = true) {
    run(machine_.forward_begin(unit, {.training = training}));
    if (training) machine_.watched(unit);
    run(machine_.forward_end(unit, {.training = training}));
  }
  void forward_of_all() {
    run(machine_.forward_begin(kRoot, {.training = true}));
    for (const int unit : {kA, kB}) forward(unit);
    run(machine_.forward_end(kRoot, {.training = true}));
  }
  void set_devices(bool replicated = false) {
    std::vector<std::vector<StepMachine::Group>> groups;
    for (int u = 0; u < 3; ++u) groups.push_back({{.index = u, .collectives = true, .gathers = true, .replicated = replicated}});
    machine_.set_groups(std::move(groups), 2);
  }
  void begin_backward() {
    run(machine_.begin_pass());
    run(machine_.backward_begin(kRoot, {1, 1}));
  }

  std::vector<std::shared_ptr<UnitRules>> rules_;
  StepMachine machine_;
  Recorder recorder_;
  std::string error_;
};

// A schedule with one unit to unshard ahead at each boundary.
std::shared_ptr<const Schedule> schedule(std::vector<Boundary> boundaries, std::vector<int> ahead) {
  auto out = std::make_shared<Schedule>();
  out->boundaries = std::move(boundaries);
  for (const int unit : ahead) out->ahead.push_back({{unit, out->boundaries[out->ahead.size()].backward}});
  return out;
}

TEST_F(StepMachineTest, AModelIsEnteredAndLeftPerMesh) {
  machine_.set_groups({{{}}, {{.model = 1}}, {{.index = 1}, {.model = 1, .index = 1}}}, 2);
  EXPECT_EQ(actions(machine_.forward_begin(kRoot, {.training = true}), {"enter"}), (Lines{"enter training", "enter model 1 training"}));
  EXPECT_FALSE(machine_.window_open());
  run(machine_.forward_end(kRoot, {.training = true}));
  begin_backward();
  run(machine_.backward_begin(kB, {1, 1}));
  // A wait in one model serves no reductions of another, so at most one model has pending ones.
  EXPECT_EQ(actions(machine_.backward_end(kB), {"begin_reduce", "await"}),
            (Lines{"begin_reduce b and reshard", "await_reductions", "begin_reduce b/1 model 1 and reshard", "await_reductions model 1"}));
  EXPECT_EQ(actions(machine_.pass_ends(false), {"finish_pass"}), (Lines{"finish_pass and leave", "finish_pass model 1 and leave"}));
  EXPECT_TRUE(machine_.window_open());
}

TEST_F(StepMachineTest, TheWindowIsClosedWhileOneModelIsRead) {
  machine_.set_groups({{{}}, {{.model = 1}}, {}}, 2);
  recorder_.fails_at = Kind::kLease;
  run(machine_.forward_begin(kA, {}));
  EXPECT_EQ(error_, "the executor failed");
  EXPECT_FALSE(machine_.window_open()) << "the rank has entered model 1";
  machine_.set_groups({{{}}, {{.model = 1}}, {}}, 2, {true, false});
  EXPECT_FALSE(machine_.window_open()) << "an old model, which this rank still reads";
}

TEST_F(StepMachineTest, ReductionsByCollectivesHoldNoSlotAndEndWithThePass) {
  machine_.set_group(kA, 0, {.index = 1, .collectives = true});
  machine_.set_optimizer_in_backward(true);
  forward_of_all();
  begin_backward();
  run(machine_.backward_begin(kA, {1}));
  EXPECT_EQ(actions(machine_.backward_end(kA), {"begin_reduce", "finish_reduce", "give_up", "update"}),
            (Lines{"begin_reduce a and reshard", "give_up a"}));
  EXPECT_EQ(actions(machine_.pass_ends(false), {"finish_reduce", "update"}),
            (Lines{"finish_reduce a", "update a", "finish_reduce b", "update b", "finish_reduce root", "update root"}));
}

TEST_F(StepMachineTest, TheProgramSetsHowManyReductionsHoldTheirInputs) {
  set_devices();
  machine_.set_inputs(2);
  forward_of_all();
  begin_backward();
  run(machine_.backward_begin(kB, {1}));
  EXPECT_EQ(actions(machine_.backward_end(kB), {"begin_reduce", "finish_reduce"}), (Lines{"begin_reduce b and reshard"}));
  run(machine_.backward_begin(kA, {1}));
  EXPECT_EQ(actions(machine_.backward_end(kA), {"begin_reduce", "finish_reduce"}), (Lines{"begin_reduce a and reshard"}));
  EXPECT_EQ(actions(machine_.pass_ends(false), {"begin_reduce", "finish_reduce", "finish_transfers"}),
            (Lines{"finish_reduce b", "begin_reduce root and reshard", "finish_reduce a", "finish_reduce root", "finish_transfers"}));
}

TEST_F(StepMachineTest, AReductionWithinTheReplicaGoesToNoOtherReplica) {
  set_devices(/*replicated=*/true);
  rules_[kA]->everywhere = rules_[kB]->everywhere = false;
  forward_of_all();
  begin_backward();
  run(machine_.backward_begin(kB, {1}));
  EXPECT_EQ(actions(machine_.backward_end(kB), {"begin_reduce"}), (Lines{"begin_reduce b and reshard within the replica"}));
  EXPECT_EQ(actions(machine_.pass_ends(false), {"begin_reduce root", "reduce_replicas", "finish_reduce"}),
            (Lines{"finish_reduce b", "finish_reduce a", "begin_reduce root and reshard", "reduce_replicas root", "finish_reduce root"}));
}

TEST_F(StepMachineTest, AReductionOnADeviceThatDidNotBeginIsNotFinished) {
  set_devices();
  forward_of_all();
  begin_backward();
  run(machine_.backward_begin(kB, {1}));
  recorder_.fails_at = Kind::kBeginReduce;
  run(machine_.backward_end(kB));
  EXPECT_EQ(error_, "the executor failed");
  EXPECT_EQ(actions(machine_.serve_window(), {"finish_reduce"}), Lines());
}

TEST_F(StepMachineTest, GathersBeginAheadWhereAllUnitsOfTheModelGather) {
  const auto begins = schedule({{false, true, 0}, {false, true, 1}}, {1, 2});
  const Lines gather = {"begin_gather"};
  set_devices();
  machine_.follow(0, begins);
  EXPECT_EQ(actions(machine_.forward_begin(kRoot, {.training = true}), gather), (Lines{"begin_gather root", "begin_gather a ahead"}));
  run(machine_.reset(/*all=*/true));
  set_devices();
  machine_.set_group(kB, 0, {.index = 2});  // in an arena: ranks may skip it, and so pass other boundaries
  machine_.follow(0, begins);
  EXPECT_EQ(actions(machine_.forward_begin(kRoot, {.training = true}), gather), (Lines{"begin_gather root"}));
}

TEST_F(StepMachineTest, AForwardDropsGathersThatAnEarlierOneLeft) {
  set_devices();
  machine_.follow(0, schedule({{false, true, 1}}, {2}));
  forward(kA);  // b is gathered ahead, and not used
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = true}), {"drop_gather"}), (Lines{"drop_gather b"}));
}

TEST_F(StepMachineTest, AnUnshardByHandIsDroppedByAWriteAndNotByAForward) {
  set_devices();
  const Lines gathers = {"order_rows", "begin_gather", "drop_gather", "show"};
  EXPECT_EQ(actions(machine_.unshard(kB, /*shows=*/false), gathers), (Lines{"order_rows", "begin_gather b by hand"}));
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = true}), {"drop_gather"}), Lines());
  EXPECT_EQ(actions(machine_.show_unsharded(kB), gathers), (Lines{"show b unsharded"}));
  run(machine_.open_window("a write"));
  run(machine_.unshard(kB, /*shows=*/false));
  EXPECT_EQ(actions(machine_.open_window("a write"), {"drop_gather"}), (Lines{"drop_gather b by hand"}));
  // The wait for its end gathers what was written.
  EXPECT_EQ(actions(machine_.show_unsharded(kB), gathers), (Lines{"order_rows", "begin_gather b by hand", "show b unsharded"}));
}

TEST_F(StepMachineTest, TheEndOfAnUnshardByHandShowsNothingAfterAForwardOrAReshard) {
  for (const bool devices : {false, true}) {
    if (devices) set_devices();
    run(machine_.unshard(kB, /*shows=*/false));
    forward(kB);
    EXPECT_EQ(actions(machine_.show_unsharded(kB), {""}), Lines());
    run(machine_.unshard(kB, /*shows=*/false));
    run(machine_.reshard(kB));
    EXPECT_EQ(actions(machine_.show_unsharded(kB), {""}), Lines());
    run(machine_.unshard(kB, /*shows=*/false));
    EXPECT_EQ(actions(machine_.show_unsharded(kB), {""}), (Lines{"show b unsharded"}));
    EXPECT_EQ(actions(machine_.show_unsharded(kB), {""}), Lines());
    run(machine_.open_window("a write"));
  }
}

TEST_F(StepMachineTest, TheGroupsOfAUnitHoldTheirInputsTogether) {
  set_devices();
  machine_.set_groups({{{.collectives = true}},
                       {{.index = 1, .collectives = true}, {.model = 1, .collectives = true}},
                       {{.index = 2, .collectives = true}, {.model = 1, .index = 1, .collectives = true}}},
                      2);
  forward_of_all();
  begin_backward();
  const Lines reductions = {"begin_reduce", "finish_reduce"};
  run(machine_.backward_begin(kB, {1, 1}));
  EXPECT_EQ(actions(machine_.backward_end(kB), reductions), (Lines{"begin_reduce b and reshard", "begin_reduce b/1 model 1 and reshard"}));
  run(machine_.backward_begin(kA, {1, 1}));
  EXPECT_EQ(actions(machine_.backward_end(kA), reductions),
            (Lines{"finish_reduce b", "finish_reduce b/1", "begin_reduce a and reshard", "begin_reduce a/1 model 1 and reshard"}));
}

TEST_F(StepMachineTest, AUnitWithoutParametersHoldsNoSlot) {
  machine_.set_group(kA, 0, {.index = 1, .empty = true});
  forward_of_all();
  begin_backward();
  EXPECT_EQ(actions(machine_.pass_ends(false), {"begin_reduce a", "finish_reduce"}),
            (Lines{"begin_reduce a and reshard", "finish_reduce b", "finish_reduce root"}));
}

TEST_F(StepMachineTest, AReductionThatDidNotBeginIsNotFinished) {
  run(machine_.enter({.training = true}));
  recorder_.fails_at = Kind::kBeginReduce;
  run(machine_.serve_publication(0, kB, 0));
  EXPECT_EQ(error_, "the executor failed");
  run(machine_.serve_publication(0, kA, 0));
  EXPECT_EQ(actions(machine_.serve_publication(0, kRoot, 0), {"finish_reduce"}), Lines()) << "two publications are under way";
  EXPECT_EQ(actions(machine_.serve_window(), {"finish_reduce"}), (Lines{"finish_reduce a", "finish_reduce root"}));
}

TEST_F(StepMachineTest, AServedUnitIsReducedAgainOnceItsReductionHasEnded) {
  rules_[kB]->reduces = false;  // the rank's last backward has kept its gradients
  run(machine_.enter({.training = true}));
  EXPECT_EQ(actions(machine_.serve_publication(0, kB, 0), {"begin_reduce", "keep", "await"}), (Lines{"begin_reduce b and reshard"}));
  EXPECT_EQ(actions(machine_.serve_publication(0, kB, 0), {"begin_reduce", "finish_reduce", "await"}),
            (Lines{"await_reductions", "finish_reduce b", "begin_reduce b and reshard"}));
}

TEST_F(StepMachineTest, InsideJoinASecondPassWaitsForTheOptimizer) {
  machine_.set_joining(true);
  forward_of_all();
  begin_backward();
  run(machine_.pass_ends(false));
  EXPECT_TRUE(machine_.unstepped());
  forward_of_all();
  run(machine_.begin_pass());
  EXPECT_EQ(error_, "inside join, a second synchronised backward ran without an optimizer's step after the first");
  run(machine_.optimizer_begin());
  EXPECT_FALSE(machine_.unstepped());
  forward_of_all();
  begin_backward();
  EXPECT_EQ(error_, "");
}

TEST_F(StepMachineTest, ARecoveryThatFailsIsMadeAgain) {
  forward_of_all();
  begin_backward();
  machine_.raised();
  recorder_.fails_at = Kind::kDropReductions;  // as where Python turns its warning into an exception
  run(machine_.recover());
  EXPECT_EQ(error_, "the executor failed");
  EXPECT_EQ(actions(machine_.recover(), {"drop_reductions", "reset"}), (Lines{"drop_reductions again", "reset"}));
  EXPECT_TRUE(machine_.recover().empty());
}

TEST_F(StepMachineTest, FinalizeReducesGradientsThatEarlierPassesKept) {
  machine_.set_finalized_by_hand(true);
  for (const auto& rules : rules_) rules->reduces = false;
  forward_of_all();
  begin_backward();
  EXPECT_EQ(actions(machine_.pass_ends(false), {"begin_reduce", "keep", "finish_pass"}),
            (Lines{"keep b and reshard", "keep a and reshard", "keep root and reshard", "finish_pass"}));
  for (const auto& rules : rules_) rules->reduces = true;
  EXPECT_EQ(actions(machine_.finalize(false), {"begin_reduce", "finish_pass"}),
            (Lines{"begin_reduce b", "begin_reduce a", "begin_reduce root", "finish_pass and leave"}));
  EXPECT_EQ(actions(machine_.finalize(false), {""}), Lines()) << "nothing is kept";
}

TEST_F(StepMachineTest, AnEvaluationOfOneUnitGuardsNoOther) {
  rules_[kA]->after_forward = UnitRules::AfterForward::kKeep;
  run(machine_.unshard(kB));
  forward(kA, /*training=*/false);
  EXPECT_EQ(machine_.view(kA), View::kGuarded);
  EXPECT_EQ(machine_.view(kB), View::kUnsharded);
}

TEST_F(StepMachineTest, CastsAreForgottenOnceTheWindowIsOpen) {
  forward_of_all();
  recorder_.fails_at = Kind::kOpenWindow;
  run(machine_.open_window("optimizer.step"));
  EXPECT_EQ(actions(machine_.forward_begin(kRoot, {.training = true}), {"forget_casts"}), (Lines{"forget_casts"}))
      << "none were forgotten since the root's last forward";
}

TEST_F(StepMachineTest, EachModelHasItsOwnSchedule) {
  // The root has a group in model 0; a has one in each model; b has one in model 1.
  machine_.set_groups({{{}}, {{.index = 1}, {.model = 1}}, {{.model = 1, .index = 1}}}, 2);
  machine_.follow(0, schedule({{false, true, 0}, {false, true, 1}, {false, false, 1}}, {1, 0, 1}));
  machine_.follow(1, schedule({{false, true, 0}, {false, false, 0}, {false, true, 1}}, {1, 0, 0}));
  const Lines unshard = {"unshard"};
  EXPECT_EQ(actions(machine_.forward_begin(kRoot, {.training = true}), unshard), (Lines{"unshard a ahead of its forward"}));
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = true}), unshard),
            (Lines{"unshard root ahead of its forward", "unshard b model 1 ahead of its forward"}));
  EXPECT_EQ(actions(machine_.forward_end(kA, {.training = true}), unshard),
            (Lines{"unshard a ahead of its forward", "unshard a/1 model 1 ahead of its forward"}));
  EXPECT_EQ(actions(machine_.forward_begin(kB, {.training = true}), unshard), (Lines{"unshard a/1 model 1 ahead of its forward"}));
}

TEST_F(StepMachineTest, AScheduleIsPassedInTrainingAlone) {
  const auto begins = schedule({{false, true, 1}}, {2});
  machine_.follow(0, begins);
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = false}), {"unshard"}), Lines());
  run(machine_.forward_end(kA, {.training = false}));
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = true}), {"unshard"}), (Lines{"unshard b ahead of its forward"}));
  machine_.follow(0, begins);
  machine_.set_groups({{{}}, {{.index = 1}}, {{.index = 2}}}, 2);  // another mesh
  EXPECT_EQ(actions(machine_.forward_begin(kA, {.training = true}), {"unshard"}), Lines());
}

TEST_F(StepMachineTest, AStepThatHasLeftItsScheduleDoesNotComeBackToIt) {
  machine_.follow(0, schedule({{false, true, 0}, {false, true, 1}, {false, true, 2}}, {1, 2, 1}));
  run(machine_.forward_begin(kRoot, {.training = true}));
  run(machine_.forward_begin(kB, {.training = true}));  // the schedule expects a
  EXPECT_EQ(actions(machine_.forward_begin(kB, {.training = true}), {"unshard"}), Lines());
}

TEST_F(StepMachineTest, AUnitThatIsGivenUpIsNotUnshardedAhead) {
  machine_.set_optimizer_in_backward(true);
  forward_of_all();
  machine_.follow(0, schedule({{true, true, 0}, {true, true, 2}, {true, false, 2}}, {2, 2, 2}));
  run(machine_.begin_pass());
  run(machine_.backward_begin(kRoot, {1}));
  run(machine_.backward_begin(kB, {1}));
  EXPECT_EQ(actions(machine_.backward_end(kB), {"unshard", "begin_reduce", "give_up"}), (Lines{"begin_reduce b and reshard", "give_up b"}));
}

TEST_F(StepMachineTest, AForwardEndsAlthoughTheUnshardAheadFails) {
  run(machine_.forward_begin(kA, {.training = true}));
  machine_.follow(0, schedule({{false, false, 1}}, {2}));
  recorder_.fails_at = Kind::kUnshard;
  EXPECT_EQ(actions(machine_.forward_end(kA, {.training = true}), {"show"}), (Lines{"show a sharded"}));
  EXPECT_EQ(error_, "");
}

TEST_F(StepMachineTest, GradientsThatAreReducedOrKeptPassABoundary) {
  for (const bool reduces : {true, false}) {
    rules_[kB]->reduces = reduces;
    forward_of_all();
    machine_.follow(0, schedule({{true, true, 0}, {true, true, 2}, {true, false, 2}}, {2, 1, 1}));
    run(machine_.begin_pass());
    EXPECT_EQ(actions(machine_.backward_begin(kRoot, {1}), {"unshard"}), (Lines{"unshard b ahead of its backward"}));
    EXPECT_EQ(actions(machine_.backward_begin(kB, {1}), {"unshard"}), (Lines{"unshard a ahead of its backward"}));
    EXPECT_EQ(actions(machine_.backward_end(kB), {"unshard"}), (Lines{"unshard a ahead of its backward"})) << reduces;
    run(machine_.reset(/*all=*/true));
  }
}

}  // namespace
}  // namespace shoal::fsdp
