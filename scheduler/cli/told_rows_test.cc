#include "scheduler/cli/told_rows.h"

#include <gtest/gtest.h>

namespace shoal::scheduler::cli {
namespace {

using actors::ToldNode;
using actors::ToldProcess;

constexpr NodeId kNode{1};
constexpr JobId kJob{2};
constexpr WorkerId kWorker{3};

Told told_of(ToldNode node) {
  Told out;
  node.node = kNode;
  node.pid = 50;
  out.hosts[kNode] = "10.0.0.1";
  out.nodes.push_back(std::move(node));
  return out;
}

TEST(ToldRowsTest, AnObjectHasARowForEachThatHoldsIt) {
  ToldNode node;
  node.objects = {{kJob, ObjectId{4}, 100, actors::ObjectState::kThere, true, 1, 0, {{kWorker, 1}, {WorkerId{9}, 0}}}};
  node.processes = {ToldProcess{kWorker, kJob, 60, "driver", {}, {}, 0, {}}};
  const auto rows = object_rows(told_of(std::move(node)));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["id"], to_string(kJob) + to_string(ObjectId{4}));
  EXPECT_EQ(rows[0]["reference"], "LOCAL_REFERENCE");
  EXPECT_EQ(rows[0]["pid"], 60);
  EXPECT_EQ(rows[0]["role"], "driver");
  EXPECT_EQ(rows[0]["host"], "10.0.0.1");
  EXPECT_EQ(rows[0]["spilled"], true);
  EXPECT_EQ(rows[1]["reference"], "PINNED_IN_MEMORY");
  EXPECT_EQ(rows[1]["pid"], 0);  // of a process that tells nothing
  EXPECT_EQ(rows[2]["reference"], "CAPTURED_IN_OBJECT");
  EXPECT_EQ(rows[2]["pid"], 50);
}

TEST(ToldRowsTest, WhatOnlyTheNodeKeepsIsPinnedByIt) {
  ToldNode node;
  node.objects = {{kJob, ObjectId{4}, 100, actors::ObjectState::kFailed, false, 0, 0, {}}};
  const auto rows = object_rows(told_of(std::move(node)));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["reference"], "PINNED_IN_MEMORY");
  EXPECT_EQ(rows[0]["status"], "FAILED");
  EXPECT_EQ(rows[0]["role"], "node");
}

TEST(ToldRowsTest, AnEnvironmentThatIsNoJsonIsShownEmpty) {
  ToldNode node;
  node.environments = {{R"({"env_vars":{"A":"1"}})", 2}, {"[[", 1}, {std::string(1000, '['), 1}};
  const auto rows = environment_rows(told_of(std::move(node)));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["runtime_env"]["env_vars"]["A"], "1");
  EXPECT_EQ(rows[0]["processes"], 2);
  EXPECT_EQ(rows[1]["runtime_env"], nlohmann::json::object());
  EXPECT_EQ(rows[2]["runtime_env"], nlohmann::json::object());
}

TEST(ToldRowsTest, WhoToldNothingIsNamed) {
  Told told;
  told.silent = {{kNode, kWorker, 60, "it was late"}, {kNode, {}, 0, "nobody listens"}};
  told.left_out = 3;
  const auto lines = silent_lines(told);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "process 60 (worker " + to_string(kWorker) + ") told nothing: it was late");
  EXPECT_EQ(lines[1], "node " + to_string(kNode) + " told nothing: nobody listens");
  EXPECT_EQ(lines[2], "3 rows more are not shown: there are too many");
}

TEST(ToldRowsTest, SizesAreForPeople) {
  EXPECT_EQ(bytes_text(1023), "1023");
  EXPECT_EQ(bytes_text(3 << 20), "3.0 MiB");
  EXPECT_EQ(bytes_text(std::uint64_t{5} << 40), "5.0 TiB");
}

}  // namespace
}  // namespace shoal::scheduler::cli
