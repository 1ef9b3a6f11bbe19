#include "scheduler/cli/inspection/inspection_rows.h"

#include <gtest/gtest.h>

#include "actors/protocol/cluster/function_worker.h"

namespace shoal::scheduler::cli {
namespace {

using actors::NodeReport;
using actors::ProcessReport;

constexpr NodeId kNode{1};
constexpr JobId kJob{2};
constexpr WorkerId kWorker{3};

InspectionReply reply_of(NodeReport node) {
  InspectionReply out;
  node.node = kNode;
  node.pid = 50;
  out.hosts[kNode] = "10.0.0.1";
  out.nodes.push_back(std::move(node));
  return out;
}

TEST(InspectionRowsTest, AnObjectHasARowForEachThatHoldsIt) {
  NodeReport node;
  node.objects = {{kJob, ObjectId{4}, 100, actors::ObjectState::kThere, true, 1, 0, {{kWorker, 1}, {WorkerId{9}, 0}}}};
  node.processes = {ProcessReport{kWorker, kJob, 60, "driver", {}, {}, 0, {}}};
  const auto rows = object_rows(reply_of(std::move(node)));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["id"], to_string(kJob) + to_string(ObjectId{4}));
  EXPECT_EQ(rows[0]["reference"], "LOCAL_REFERENCE");
  EXPECT_EQ(rows[0]["pid"], 60);
  EXPECT_EQ(rows[0]["role"], "driver");
  EXPECT_EQ(rows[0]["host"], "10.0.0.1");
  EXPECT_EQ(rows[0]["spilled"], true);
  EXPECT_EQ(rows[1]["reference"], "PINNED_IN_MEMORY");
  EXPECT_EQ(rows[1]["pid"], 0);  // a process without a report
  EXPECT_EQ(rows[2]["reference"], "CAPTURED_IN_OBJECT");
  EXPECT_EQ(rows[2]["pid"], 50);
}

TEST(InspectionRowsTest, WhatOnlyTheNodeKeepsIsPinnedByIt) {
  NodeReport node;
  node.objects = {{kJob, ObjectId{4}, 100, actors::ObjectState::kFailed, false, 0, 0, {}}};
  const auto rows = object_rows(reply_of(std::move(node)));
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["reference"], "PINNED_IN_MEMORY");
  EXPECT_EQ(rows[0]["status"], "FAILED");
  EXPECT_EQ(rows[0]["role"], "node");
}

class TaskRowsTest : public testing::Test {
 protected:
  static constexpr WorkerId kCaller{5};
  static constexpr ActorId kActor{6};
  using State = actors::TaskState;

  TaskRowsTest() {
    reported_.hosts[kNode] = "10.0.0.1";
    actors::ActorRow row;
    row.id = kActor;
    row.class_name = "Adder";
    row.worker = kWorker;
    row.node = kNode;
    row.pid = 60;
    reported_.actors[kActor] = row;
  }
  static actors::TaskReport task(std::uint64_t number, State state, std::int64_t start = 0, std::int64_t end = 0) {
    return {number, kCaller, kActor, "add", "", state, start, end, ""};
  }
  nlohmann::json rows(std::vector<actors::TaskReport> of_caller, std::vector<actors::TaskReport> of_worker) {
    NodeReport node;
    node.node = kNode;
    node.processes = {ProcessReport{kCaller, kJob, 50, "driver", std::move(of_caller), {}, 0, {}},
                      ProcessReport{kWorker, kJob, 60, "actor Adder", std::move(of_worker), {}, 0, {}}};
    reported_.nodes = {node};
    return task_rows(reported_);
  }

  InspectionReply reported_;
};

TEST_F(TaskRowsTest, WhatWasSentIsOneWithWhatRuns) {
  const auto out = rows({task(1, State::kSubmitted), task(2, State::kSubmitted), task(3, State::kPendingArguments)},
                        {task(1, State::kRunning, 1000), task(9, State::kFinished, 500, 700)});
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0]["state"], "RUNNING");
  EXPECT_EQ(out[0]["pid"], 60);
  EXPECT_EQ(out[0]["name"], "Adder.add");
  EXPECT_EQ(out[0]["type"], "ACTOR_TASK");
  EXPECT_EQ(out[0]["id"], to_string(kCaller) + hex(1));
  EXPECT_EQ(out[1]["state"], "SUBMITTED_TO_WORKER");
  EXPECT_EQ(out[1]["pid"], 60);  // the actor's process
  EXPECT_EQ(out[2]["state"], "PENDING_ARGS_AVAIL");
  EXPECT_TRUE(out[2]["pid"].is_null());
  EXPECT_EQ(out[3]["state"], "FINISHED");
  EXPECT_EQ(out[3]["end_unix_ms"], 0.7);
}

TEST_F(TaskRowsTest, AnEndIsLaterThanAnythingElse) {
  auto lost = task(1, State::kFailed, 0, 900);
  lost.error = "ACTOR_DIED";
  const auto out = rows({lost, task(2, State::kFinished, 100, 950)}, {task(1, State::kRunning, 1000), task(2, State::kFinished, 200, 800)});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["state"], "FAILED");
  EXPECT_EQ(out[0]["error_type"], "ACTOR_DIED");
  EXPECT_EQ(out[1]["start_unix_ms"], 0.2);  // time from the process that ran it
}

TEST_F(TaskRowsTest, AttemptsHaveRowsOfTheirOwnAndFunctionsTheirNames) {
  auto first = task(1, State::kFailed, 100, 200), second = task(1 | (std::uint64_t{1} << 56), State::kFinished, 300, 400);
  first.function = second.function = "half";
  const auto out = rows({}, {first, second});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0]["id"], out[1]["id"]);
  EXPECT_EQ(out[0]["attempt"], 1);
  EXPECT_EQ(out[0]["name"], "half");
  EXPECT_EQ(out[0]["type"], "NORMAL_TASK");
  EXPECT_TRUE(out[0]["actor"].is_null());
}

TEST_F(TaskRowsTest, OfAttemptsBeyondThoseThatHaveNumbersTheLaterIsShown) {
  const std::uint64_t last = (std::uint64_t{255} << 56) + 7;
  const auto state = [&](State first, State second, std::int64_t second_start) {
    return rows({task(last, first, 100, 200)}, {task(last, second, second_start)})[0]["state"];
  };
  EXPECT_EQ(state(State::kFailed, State::kRunning, 300), "RUNNING");
  EXPECT_EQ(state(State::kFailed, State::kRunning, 150), "FAILED");  // same attempt: its process was asked before the end
  EXPECT_EQ(rows({task(7, State::kFailed, 100, 200)}, {task(7, State::kRunning, 300)})[0]["state"], "FAILED");
}

TEST_F(TaskRowsTest, CallsOfOursAreNotShown) {
  auto released = task(1, State::kFinished, 100, 200), made = task(2, State::kFinished, 100, 200);
  released.method = "__shoal_release__";
  made.method = "__init__";
  EXPECT_EQ(rows({}, {released, made}).size(), 1u);
  reported_.actors[kActor].class_name = actors::kFunctionWorker;
  EXPECT_TRUE(rows({}, {released, made}).empty());
}

TEST_F(TaskRowsTest, ATraceHasALaneForEachCallAtOnce) {
  const auto trace = trace_of(rows({task(4, State::kPendingArguments)}, {task(1, State::kFinished, 100, 300), task(2, State::kRunning, 200),
                                                                         task(3, State::kFinished, 300, 400)}),
                              1000);
  std::map<std::string, std::pair<double, int>> spans;  // by id
  std::size_t names = 0;
  for (const auto& e : trace) {
    if (e["ph"] == "M") {
      ++names;
      continue;
    }
    EXPECT_EQ(e["ph"], "X");
    EXPECT_EQ(e["pid"], 1);
    spans[e["args"]["id"].get<std::string>().substr(31)] = {e["dur"], e["tid"]};
  }
  using Span = std::pair<double, int>;
  EXPECT_EQ(spans, (std::map<std::string, Span>{{"1", Span{200, 1}}, {"2", Span{800, 2}}, {"3", Span{100, 1}}}));
  EXPECT_EQ(names, 3u);  // one node, two lanes
}

TEST(InspectionRowsTest, AnEnvironmentThatIsNoJsonIsShownEmpty) {
  NodeReport node;
  node.environments = {{R"({"env_vars":{"A":"1"}})", 2}, {"[[", 1}, {std::string(1000, '['), 1}};
  const auto rows = environment_rows(reply_of(std::move(node)));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["runtime_env"]["env_vars"]["A"], "1");
  EXPECT_EQ(rows[0]["processes"], 2);
  EXPECT_EQ(rows[1]["runtime_env"], nlohmann::json::object());
  EXPECT_EQ(rows[2]["runtime_env"], nlohmann::json::object());
}

TEST(InspectionRowsTest, WhoToldNothingIsNamed) {
  InspectionReply reported;
  reported.silent = {{kNode, kWorker, 60, "it was late"}, {kNode, {}, 0, "nobody listens"}};
  reported.left_out = 3;
  const auto lines = silent_lines(reported);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "process 60 (worker " + to_string(kWorker) + ") told nothing: it was late");
  EXPECT_EQ(lines[1], "node " + to_string(kNode) + " told nothing: nobody listens");
  EXPECT_EQ(lines[2], "3 rows more are not shown: there are too many");
}

TEST(InspectionRowsTest, SizesAreForPeople) {
  EXPECT_EQ(bytes_text(1023), "1023");
  EXPECT_EQ(bytes_text(3 << 20), "3.0 MiB");
  EXPECT_EQ(bytes_text(std::uint64_t{5} << 40), "5.0 TiB");
}

}  // namespace
}  // namespace shoal::scheduler::cli
