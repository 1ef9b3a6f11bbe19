#include "runtime/telemetry/telemetry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace shoal::runtime {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

class TelemetryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              ("telemetry" + std::to_string(getpid()) + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::shared_ptr<Telemetry> open() {
    auto out = Telemetry::open(
        folder_ / "run", {.role = "rank", .rank = 1, .world = 2, .local_rank = 1, .host = "a/../b", .device = "cpu", .argv = {"train.py"}});
    EXPECT_TRUE(out) << out.error().message();
    return *out;
  }
  fs::path folder_;
};

void step(Telemetry& telemetry) {
  telemetry.unit_begin(Activity::kForward, 0);
  telemetry.wait_begin(Activity::kGather, 0);
  telemetry.wait_end();
  telemetry.unit_end(Activity::kForward, 0);
  telemetry.unit_begin(Activity::kBackward, 0);
  telemetry.unit_end(Activity::kBackward, 0);
  telemetry.optimizer_begin();
  telemetry.optimizer_end();
}

TEST_F(TelemetryTest, AClosedTelemetryHasAllSteps) {
  fs::path at;
  {
    const auto telemetry = open();
    at = telemetry->folder();
    EXPECT_EQ(telemetry->add_units({"", "layers.0"}), 0);
    EXPECT_EQ(telemetry->add_units({"", "layers.0"}), 0);
    EXPECT_EQ(telemetry->add_units({"other"}), 2);
    for (int i = 0; i < 5; ++i) step(*telemetry);
    telemetry->set_member(0, 1, 2);
    step(*telemetry);
    EXPECT_EQ(telemetry->step(), 6u);
    telemetry->metrics({{"loss", 2.5}});
    telemetry->event("save", R"({"path":"x","t":7})");
    telemetry->close(3, "why");
    step(*telemetry);
  }
  const auto rows = lines_of(at / "steps.0-0.jsonl");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_EQ(step_row(rows[4])->generation, 1);
  EXPECT_EQ(step_row(rows[4])->step, 5u);
  EXPECT_EQ(step_row(rows[5])->generation, 2);
  EXPECT_EQ(step_row(rows[5])->rank, 0);
  const auto spans = lines_of(at / "spans.0-0.jsonl");
  ASSERT_GE(spans.size(), 3u);
  EXPECT_EQ(spans_row(spans[0])->spans.size(), 4u);
  EXPECT_EQ(metrics_row(lines_of(at / "metrics.0-0.jsonl")[0])->step, 6u);
  EXPECT_GT(sample_row(lines_of(at / "samples.0-0.jsonl")[0])->rss, 0);
  const auto events = lines_of(at / "events.0-0.jsonl");
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0], R"({"t":7,"kind":"save","path":"x"})");
  EXPECT_NE(events[1].find(R"("kind":"end","code":3,"cause":"why")"), std::string::npos);
  const auto facts = nlohmann::json::parse(lines_of(at / "process.json")[0]);
  EXPECT_EQ(facts["units"], (nlohmann::json{"", "layers.0", "other"}));
  EXPECT_EQ(facts["host"], "a/../b");
  EXPECT_EQ(at.parent_path(), folder_ / "run" / "processes");
}

TEST_F(TelemetryTest, AReaderSeesWhereTheRankIs) {
  const auto telemetry = open();
  const Fd file(::open((telemetry->folder() + "/live").c_str(), O_RDONLY));
  ASSERT_TRUE(file);
  const auto* const page = static_cast<const LivePage*>(mmap(nullptr, sizeof(LivePage), PROT_READ, MAP_SHARED, file.get(), 0));
  ASSERT_NE(page, MAP_FAILED);
  EXPECT_EQ(page->magic, LivePage::kMagic);
  EXPECT_EQ(page->rank, 1u);
  telemetry->unit_begin(Activity::kForward, 3);
  EXPECT_EQ(page->activity, static_cast<std::uint32_t>(Activity::kForward));
  EXPECT_EQ(page->unit, 3);
  const auto since = page->since_us.load();
  telemetry->wait_begin(Activity::kGather, 3);
  EXPECT_EQ(page->activity, static_cast<std::uint32_t>(Activity::kGather));
  EXPECT_GE(page->since_us, since);
  const auto beat = page->beat_us.load();
  while (page->beat_us == beat) usleep(1000);
  telemetry->close(0, "");
  EXPECT_EQ(page->activity, static_cast<std::uint32_t>(Activity::kEnded));
}

TEST_F(TelemetryTest, AForkedChildEndsWithoutTheThread) {
  const auto telemetry = open();
  const pid_t child = fork();
  if (child == 0) {
    telemetry->~Telemetry();
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(TelemetryTest, AnUnusableFolderIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_FALSE(Telemetry::open(folder_ / "file", {}));
}

class SegmentsTest : public TelemetryTest {
 protected:
  void SetUp() override {
    TelemetryTest::SetUp();
    at_ = Fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY));
  }
  // Each line is a number; merged lines have their sum.
  static std::string sum(const std::vector<std::string_view>& lines) {
    long out = 0;
    for (const auto l : lines) out += std::stol(std::string(l));
    return std::to_string(out);
  }
  std::vector<std::string> files() const {
    std::vector<std::string> out;
    for (const auto& e : fs::directory_iterator(folder_)) out.push_back(e.path().filename());
    std::sort(out.begin(), out.end());
    return out;
  }
  long total() const {
    long out = 0;
    for (const auto& f : files())
      for (const auto& line : lines_of(folder_ / f)) out += std::stol(line);
    return out;
  }
  Fd at_;
};

TEST_F(SegmentsTest, OldLinesGetCoarserAndNothingIsLost) {
  Segments segments(at_, "n", {.bytes = 200}, sum);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(segments.append("1\n"));
  EXPECT_EQ(total(), 5000);
  EXPECT_LT(segments.bytes(), 200u * 2 * 4);
  std::uintmax_t bytes = 0;
  for (const auto& f : files()) bytes += fs::file_size(folder_ / f);
  EXPECT_EQ(bytes, segments.bytes());
  EXPECT_EQ(lines_of(folder_ / files().front())[0], "1");
}

TEST_F(SegmentsTest, TheLastLevelDropsItsOldest) {
  Segments segments(at_, "n", {.bytes = 20, .kept = 2, .levels = 2}, sum);
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(segments.append("1\n"));
  EXPECT_EQ(files().size(), 4u);
  EXPECT_LT(total(), 5000);
}

TEST_F(SegmentsTest, WithoutAMergeOldSegmentsGo) {
  Segments segments(at_, "n", {.bytes = 20, .kept = 4});
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(segments.append("1\n"));
  EXPECT_EQ(files().size(), 4u);
}

TEST_F(SegmentsTest, ASegmentThatSomebodyRemovedEndsNothing) {
  Segments segments(at_, "n", {.bytes = 20}, sum);
  for (int i = 0; i < 500; ++i) {
    if (i % 50 == 0)
      for (const auto& f : files()) fs::remove(folder_ / f);
    ASSERT_TRUE(segments.append("1\n"));
  }
}

TEST_F(SegmentsTest, AFailedWriteLeavesNoPartOfALine) {
  Segments segments(at_, "n", {}, sum);
  ASSERT_TRUE(segments.append("1\n"));
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{5, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_FALSE(segments.append("222222222\n"));
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_TRUE(segments.append("3\n"));
  EXPECT_EQ(lines_of(folder_ / "n.0-0.jsonl"), (std::vector<std::string>{"1", "3"}));
}

}  // namespace
}  // namespace shoal::runtime
