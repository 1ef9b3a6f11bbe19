#include "actors/api/record/step_record.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/telemetry/rows.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

class StepRecordTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = fs::path(testing::TempDir()) / ("step_record" + std::to_string(getpid())); }
  void TearDown() override { fs::remove_all(folder_); }
  std::vector<std::string> lines(const std::string& name) const {
    std::vector<std::string> out;
    for (const auto& process : fs::directory_iterator(folder_ / "processes")) {
      std::ifstream in(process.path() / name);
      for (std::string line; std::getline(in, line);) out.push_back(line);
    }
    return out;
  }
  fs::path folder_;
};

TEST_F(StepRecordTest, AStepHasTheTimesOfItsBlocks) {
  StepRecord record(folder_, "server");
  for (int i = 0; i < 3; ++i) {
    {
      const auto forward = record.at(Activity::kForward, "shard 1");
      const auto wait = record.at(Activity::kGather, "weights");
    }
    const auto optimizer = record.at(Activity::kOptimizer);
    record.end_step();
    record.report({{"loss", 0.5}});
  }
  record.end_step();  // a step without blocks
  record.close(1);
  const auto rows = lines("steps.0-0.jsonl");
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(runtime::step_row(rows[2])->step, 3u);
  const auto spans = runtime::spans_row(lines("spans.0-0.jsonl")[1]).value().spans;
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[0].activity, Activity::kGather);
  EXPECT_EQ(spans[1].activity, Activity::kForward);
  EXPECT_EQ(spans[2].activity, Activity::kOptimizer);
  const auto facts = nlohmann::json::parse(lines("process.json")[0]);
  EXPECT_EQ(facts["role"], "rank");
  EXPECT_EQ(facts["units"][static_cast<std::size_t>(spans[1].unit)], "shard 1");
  EXPECT_EQ(facts["argv"], (nlohmann::json{"server"}));
  EXPECT_EQ(runtime::metrics_row(lines("metrics.0-0.jsonl")[2])->step, 3u);
  const auto events = lines("events.0-0.jsonl");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(nlohmann::json::parse(events[0])["kind"], "begin");
  EXPECT_EQ(nlohmann::json::parse(events[1])["code"], 1);
}

TEST_F(StepRecordTest, AProgramThatMakesNoStepRecordsNothing) {
  { StepRecord(folder_, "server").close(0); }
  EXPECT_FALSE(fs::exists(folder_));
  StepRecord silent("", "server");
  const auto at = silent.at(Activity::kForward);
  silent.end_step();
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(StepRecordTest, AFolderThatCannotBeWrittenEndsNothing) {
  std::ofstream(folder_) << "a file";
  StepRecord record(folder_ / "run", "server");
  record.end_step();
  const auto at = record.at(Activity::kForward);
}

}  // namespace
}  // namespace shoal
