#include "fsdp/step/device_timeline.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include <gtest/gtest.h>

namespace shoal::fsdp {
namespace {

using Stream = VirtualDevice::Stream;
using MemoryKind = VirtualDevice::Kind;
using Operation = VirtualDevice::Operation;

// The host, kernels and copies take no time.
constexpr DeviceCosts kFree{.launch = 0, .record = 0, .hook = 0, .action = 0, .rendezvous = 0, .memory = 1e30};

// Steps of a root without parameters and of units a and b, 100 elements each, on two ranks: a gather takes a second, a reduction two.
class DeviceTimelineTest : public testing::Test {
 protected:
  static constexpr int kRoot = 0, kA = 1, kB = 2;

  DeviceTimelineTest() {
    model_.units = {{.name = "root"},
                    {.name = "a", .numel = 100, .forward = 10, .backward = 20, .activations = 10},
                    {.name = "b", .numel = 100, .forward = 10, .backward = 20, .activations = 10}};
    model_.shards = {.ranks = 2, .bus_bandwidth = 100};
    model_.replicas = {.ranks = 1, .bus_bandwidth = 100, .link = 1};
  }
  void start() {
    std::vector<StepMachine::UnitOptions> units;
    std::vector<std::vector<StepMachine::Group>> groups;
    for (int u = 0; u < 3; ++u) {
      units.push_back({u == 0 ? "" : model_.units[static_cast<std::size_t>(u)].name, u == 0, std::make_shared<UnitRules>()});
      groups.push_back({{.index = u, .empty = u == 0, .collectives = true, .gathers = u > 0, .replicated = model_.replicas.ranks > 1}});
    }
    machine_ = std::make_unique<StepMachine>(std::move(units));
    machine_->set_groups(std::move(groups), 2);
    machine_->set_inputs(model_.inputs);
    program_ = std::make_unique<DeviceProgram>(*device_, model_);
    timeline_ = std::make_unique<DeviceTimeline>(*machine_, *program_, *device_, model_);
  }
  void carry_out(const Result<Actions>& actions) { ASSERT_TRUE(perform(*machine_, *timeline_, actions)); }
  void begin_forward(int unit) {
    carry_out(machine_->forward_begin(unit, {.training = true}));
    machine_->watched(unit);
  }
  void end_forward(int unit) { carry_out(machine_->forward_end(unit, {.training = true})); }
  void compute_ends() {
    if (waits_) device_->synchronize(device_->mark(Stream::kProgram));
  }
  void step() {
    begin_forward(kRoot);
    for (const int u : {kA, kB}) {
      begin_forward(u);
      program_->forward(u);
      compute_ends();
      end_forward(u);
    }
    end_forward(kRoot);
    packed_after_forward_ = device_->allocated(MemoryKind::kPacked);
    carry_out(machine_->begin_pass());
    carry_out(machine_->backward_begin(kRoot, {}));
    for (const int u : {kB, kA}) {
      carry_out(machine_->backward_begin(u, {}));
      program_->backward(u);
      compute_ends();
      carry_out(machine_->backward_end(u));
    }
    carry_out(machine_->pass_ends(false));
    program_->optimizer();
    carry_out(machine_->optimizer_begin());
    carry_out(machine_->optimizer_end());
    device_->synchronize();
  }
  // Each unit is gathered where the one before it begins.
  void learn() {
    auto schedule = std::make_shared<Schedule>();
    schedule->boundaries = {{false, true, 0}, {false, true, 1}, {false, false, 1}, {false, true, 2}, {false, false, 2}, {false, false, 0},
                            {true, true, 0},  {true, true, 2},  {true, false, 2},  {true, true, 1},  {true, false, 1},  {true, false, 0}};
    schedule->ahead.resize(schedule->boundaries.size());
    schedule->ahead[0] = {{1, false}};
    schedule->ahead[1] = {{2, false}};
    schedule->ahead[6] = {{2, true}};
    schedule->ahead[7] = {{1, true}};
    timeline_->follow(schedule);
  }
  // The last one with this label, or, with `first`, the first one.
  const Operation& operation(const std::string& label, bool first = false) const {
    const auto& all = device_->operations();
    const auto has = [&](const Operation& o) { return o.label == label; };
    const auto found = std::find_if(all.rbegin(), all.rend(), has);
    if (found == all.rend()) throw std::runtime_error("no operation " + label);
    return first ? *std::find_if(all.begin(), all.end(), has) : *found;
  }

  std::unique_ptr<VirtualDevice> device_ = std::make_unique<VirtualDevice>(kFree);
  double packed_after_forward_ = -1;
  bool waits_ = false;  // the program reads each result on the host
  DeviceModel model_;
  std::unique_ptr<StepMachine> machine_;
  std::unique_ptr<DeviceProgram> program_;
  std::unique_ptr<DeviceTimeline> timeline_;
};

TEST_F(DeviceTimelineTest, AGatherLiesBesideTheComputationOfTheUnitBefore) {
  start();
  step();
  EXPECT_EQ(operation("forward a").start, 1) << "the first gather has nothing to lie beside";
  EXPECT_EQ(operation("all_gather b", /*first=*/true).start, 1);
  EXPECT_EQ(operation("forward b").start, 11);
}

TEST_F(DeviceTimelineTest, AScheduleHidesGathersFromAHostThatDoesNotRunAhead) {
  waits_ = true;
  start();
  step();
  EXPECT_EQ(operation("forward b").start, 12);
  EXPECT_EQ(operation("backward b").start, 23);
  EXPECT_EQ(operation("all_gather a").start, 45) << "behind the reduction of b";
  const double began = device_->now();
  learn();
  step();
  EXPECT_EQ(operation("forward b").start - began, 11);
  EXPECT_EQ(operation("backward b").start - began, 22) << "no computation lies between its forward and its backward";
  EXPECT_EQ(operation("all_gather a").start, operation("backward b").start);
  EXPECT_EQ(operation("backward a").start, operation("backward b").end);
}

TEST_F(DeviceTimelineTest, AReductionLiesBesideTheNextBackward) {
  waits_ = true;
  start();
  step();
  learn();
  step();
  EXPECT_EQ(operation("reduce_scatter b").start, operation("backward a").start);
  EXPECT_LT(operation("reduce_scatter b").end, operation("backward a").end);
}

TEST_F(DeviceTimelineTest, WithOneCommunicatorAGatherQueuesBehindTheReductionBefore) {
  for (const bool separate : {false, true}) {
    if (separate) model_.reductions = Communicator{.ranks = 2, .bus_bandwidth = 100, .link = 2};
    waits_ = true;
    device_ = std::make_unique<VirtualDevice>(kFree);
    start();
    step();
    const Operation& reduction = operation("reduce_scatter b");
    EXPECT_EQ(operation("all_gather a").start, separate ? reduction.start : reduction.end);
  }
}

TEST_F(DeviceTimelineTest, TheNextPackingWaitsForTheReductionUnlessTwoInputsAreAllowed) {
  for (const int inputs : {1, 2}) {
    model_.inputs = inputs;
    model_.units[kA].backward = 0.5;
    model_.shards.bus_bandwidth = 1e30;  // gathers take no time
    model_.reductions = Communicator{.ranks = 2, .bus_bandwidth = 100};
    device_ = std::make_unique<VirtualDevice>(kFree);
    start();
    step();
    const Operation& before = operation("reduce_scatter b");
    EXPECT_EQ(operation("pack gradients a").start, inputs == 1 ? before.end : before.start + 0.5);
    EXPECT_EQ(device_->at_peak(MemoryKind::kPacked), inputs == 1 ? 200 + 400 : 400 + 400);
  }
}

TEST_F(DeviceTimelineTest, TheSumOverReplicasLiesBesideTheNextBackward) {
  model_.replicas.ranks = 2;
  start();
  step();
  const Operation& sum = operation("all_reduce b");
  EXPECT_EQ(sum.start, operation("reduce_scatter b").end);
  EXPECT_EQ(sum.end - sum.start, 2) << "two times half of 200 bytes, at 100 bytes per second";
  EXPECT_LT(sum.end, operation("backward a").end);
  EXPECT_EQ(operation("reduce_scatter a").start, operation("backward a").end);
}

TEST_F(DeviceTimelineTest, ACopyToTheHostLiesBesideTheNextReduction) {
  model_.offloads = true;
  model_.units[kA].backward = 0;
  device_ = std::make_unique<VirtualDevice>(
      DeviceCosts{.launch = 0, .record = 0, .hook = 0, .action = 0, .rendezvous = 0, .memory = 1e30, .to_device = 1e30, .to_host = 100});
  start();
  step();
  EXPECT_EQ(operation("to host b").start, operation("reduce_scatter b").end);
  EXPECT_EQ(operation("to host b").end - operation("to host b").start, 2);
  EXPECT_LT(operation("reduce_scatter a").start, operation("to host b").end);
}

TEST_F(DeviceTimelineTest, GradientsReachTheHostBeforeTheOptimizerRunsThere) {
  model_.offloads = true;
  model_.host_memory = 2800;  // the optimizer takes a second
  start();
  step();
  EXPECT_GE(operation("to host a").start, operation("reduce_scatter a").end);
  EXPECT_EQ(device_->now(), operation("to host a").end + 1);
  EXPECT_EQ(device_->allocated(), 0) << "the device has no shards";
}

// By hand, with 2 ranks: 1200 bytes of shards and states. At the peak, when a is gathered for its backward, there are: its buffer and its
// whole parameter (200 each), its activations (10), b's packed gradients (400) and the sum of them (200).
TEST_F(DeviceTimelineTest, ThePeakOfAStepIsThatOfItsParts) {
  start();
  step();
  EXPECT_EQ(device_->at_peak(MemoryKind::kShards), 1200);
  EXPECT_EQ(device_->at_peak(MemoryKind::kWhole), 200);
  EXPECT_EQ(device_->at_peak(MemoryKind::kPacked), 200 + 400);
  EXPECT_EQ(device_->at_peak(MemoryKind::kGradients), 200);
  EXPECT_EQ(device_->at_peak(MemoryKind::kActivations), 10);
  EXPECT_EQ(device_->peak(), 2210);
  EXPECT_EQ(device_->allocated(), 1200) << "a step leaves its shards only";
  EXPECT_EQ(packed_after_forward_, 0) << "the end of a forward frees the buffer of its last gather";
}

TEST_F(DeviceTimelineTest, AGatherInPlaceUnpacksNothing) {
  model_.own_groups = true;
  start();
  step();
  learn();
  step();
  EXPECT_EQ(operation("forward b").start, operation("forward a").end);
  EXPECT_EQ(std::count_if(device_->operations().begin(), device_->operations().end(),
                          [](const Operation& o) { return o.label.starts_with("unpack"); }),
            0);
  EXPECT_EQ(device_->allocated(), 1200);
}

}  // namespace
}  // namespace shoal::fsdp
