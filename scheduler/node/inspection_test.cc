#include "scheduler/node/inspection.h"

#include <gtest/gtest.h>

namespace shoal::scheduler {
namespace {

using actors::NodeReport;
using actors::ObjectReport;
using actors::ProcessReport;

constexpr JobId kJob{1};
constexpr WorkerId kMaker{10}, kReader{11};

ObjectReport object(ObjectId id, std::uint64_t memory, std::vector<ObjectReport::Holder> holders) {
  return {kJob, id, 100, actors::ObjectState::kThere, false, 0, memory, std::move(holders)};
}

ProcessReport process(WorkerId worker, std::vector<ObjectReport> objects) { return {worker, kJob, 1, "", {}, std::move(objects), 0, {}}; }

std::vector<std::pair<std::uint64_t, std::int64_t>> holders(const ObjectReport& o) {
  std::vector<std::pair<std::uint64_t, std::int64_t>> out;
  for (const auto& h : o.holders) out.emplace_back(h.worker.value, h.count);
  return out;
}

TEST(InspectionTest, AMemoryThatTwoProcessesHaveIsOneObjectWithItsMakersName) {
  NodeReport node;
  node.processes = {process(kReader, {object({}, 7, {{{}, 0}})}), process(kMaker, {object(ObjectId{5}, 7, {{{}, 1}})})};
  join_objects(node);
  ASSERT_EQ(node.objects.size(), 1u);
  EXPECT_EQ(node.objects[0].id, ObjectId{5});
  EXPECT_EQ(holders(node.objects[0]), (std::vector<std::pair<std::uint64_t, std::int64_t>>{{10, 1}, {11, 0}}));
  EXPECT_TRUE(node.processes[0].objects.empty());
}

TEST(InspectionTest, ObjectsOfTheNodeAreNotCountedTwice) {
  NodeReport node;
  node.objects = {object(ObjectId{5}, 7, {{kMaker, 2}})};
  // The object is in a file by now, which counts as another memory.
  node.processes = {process(kMaker, {object(ObjectId{5}, 8, {{{}, 1}})}), process(kReader, {object({}, 7, {{{}, 0}})})};
  join_objects(node);
  ASSERT_EQ(node.objects.size(), 1u);
  EXPECT_EQ(holders(node.objects[0]), (std::vector<std::pair<std::uint64_t, std::int64_t>>{{10, 2}, {11, 0}}));
}

TEST(InspectionTest, MemoriesOfWhichNothingIsKnownAreNotOne) {
  NodeReport node;
  node.processes = {process(kMaker, {object({}, 0, {{{}, 0}}), object({}, 0, {{{}, 0}})})};
  join_objects(node);
  EXPECT_EQ(node.objects.size(), 2u);
}

TEST(InspectionTest, RowsOfFinishedCallsAreOmittedFirst) {
  using actors::TaskState;
  actors::ProcessReport process;
  for (const auto state : {TaskState::kRunning, TaskState::kPendingArguments, TaskState::kFinished, TaskState::kFailed}) {
    process.tasks.emplace_back().state = state;
  }
  Inspection::leave(process, 3);
  EXPECT_EQ(process.tasks.size(), 3u);
  EXPECT_EQ(process.left_out, 0u);
  Inspection::leave(process, 1);
  ASSERT_EQ(process.tasks.size(), 1u);
  EXPECT_EQ(process.tasks[0].state, TaskState::kRunning);
  EXPECT_EQ(process.left_out, 1u);
  EXPECT_EQ(process.forgotten, 2u);
  process.objects.resize(3);
  Inspection::leave(process, 2);
  EXPECT_EQ(process.objects.size(), 2u);
  EXPECT_EQ(process.left_out, 2u);
}

TEST(InspectionTest, ReferencesWithoutAnObjectAreReported) {
  storage::MemoryTable::Options options;
  options.spare_bytes = 0;
  storage::MemoryTable memory(options);
  storage::ReferenceTable references;
  auto made = runtime::make_memory("test", 4096);
  ASSERT_TRUE(made);
  ASSERT_TRUE(memory.put(kJob, ObjectId{1}, *std::move(made)));
  (void)memory.put(kJob, ObjectId{2}, fail(internal("it was never made")));
  (void)references.count({kJob, ObjectId{1}}, kMaker, 2);
  (void)references.count({kJob, ObjectId{3}}, kReader, 1);
  references.contain({kJob, ObjectId{3}}, {{kJob, ObjectId{1}}});
  const auto reported = report_objects(memory, references);
  ASSERT_EQ(reported.size(), 3u);
  EXPECT_EQ(reported[0].state, actors::ObjectState::kThere);
  EXPECT_EQ(reported[0].bytes, 4096u);
  EXPECT_EQ(reported[0].contained, 1u);
  EXPECT_FALSE(reported[0].spilled);
  EXPECT_EQ(holders(reported[0]), (std::vector<std::pair<std::uint64_t, std::int64_t>>{{10, 2}}));
  EXPECT_EQ(reported[1].state, actors::ObjectState::kFailed);
  EXPECT_EQ(reported[2].state, actors::ObjectState::kAbsent);
}

}  // namespace
}  // namespace shoal::scheduler
