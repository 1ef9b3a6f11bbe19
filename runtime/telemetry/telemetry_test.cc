#include "runtime/telemetry/telemetry.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
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
  telemetry.begin(Activity::kForward, 0);
  telemetry.wait_begin(Activity::kGather, 0);
  telemetry.wait_end();
  telemetry.end(Activity::kForward, 0);
  telemetry.begin(Activity::kBackward);
  telemetry.end(Activity::kBackward);
  telemetry.begin(Activity::kOptimizer, 1);
  telemetry.end_optimizer(1);
}

TEST_F(TelemetryTest, AClosedTelemetryHasAllSteps) {
  fs::path at;
  {
    const auto telemetry = open();
    at = telemetry->folder();
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

// The live page of a process's folder, once `ready` holds.
template <class Ready>
std::unique_ptr<LivePage> live_page(const Telemetry& telemetry, Ready&& ready) {
  auto page = std::make_unique<LivePage>();
  const Fd file(::open((telemetry.folder() + "/live").c_str(), O_RDONLY));
  while (pread(file.get(), static_cast<void*>(page.get()), sizeof(LivePage), 0) != static_cast<ssize_t>(sizeof(LivePage)) || !ready(*page))
    usleep(1000);
  return page;
}

TEST_F(TelemetryTest, AReaderSeesWhatTheRankDoes) {
  const auto telemetry = open();
  telemetry->begin(Activity::kForward, 3);
  const auto is = [](Activity a) { return [a](const LivePage& p) { return p.activity == static_cast<std::uint32_t>(a); }; };
  const auto forward = live_page(*telemetry, is(Activity::kForward));
  EXPECT_EQ(forward->magic, LivePage::kMagic);
  EXPECT_EQ(forward->rank, 1u);
  EXPECT_EQ(forward->unit, 3);
  const auto later = live_page(*telemetry, [&](const LivePage& p) { return p.beat_us > forward->beat_us; });
  EXPECT_EQ(later->since_us, forward->since_us);
  telemetry->wait_begin(Activity::kGather, 3);
  const auto gather = live_page(*telemetry, is(Activity::kGather));
  EXPECT_GE(gather->since_us, forward->since_us);
  EXPECT_GT(gather->beat_us, forward->beat_us);
  std::filesystem::resize_file(telemetry->folder() + "/live", 0);
  telemetry->wait_end();
  telemetry->close(0, "");
  live_page(*telemetry, is(Activity::kEnded));
}

TEST_F(TelemetryTest, AForkedChildRecordsNothingAndEnds) {
  auto telemetry = open();
  step(*telemetry);
  const pid_t child = fork();
  if (child == 0) {
    step(*telemetry);
    telemetry->event("of the child");
    if (telemetry->step() != 0) _exit(1);  // a lock that the parent held at the fork would never open
    telemetry.reset();                     // the parent's thread waits at the copied condition variable
    _exit(0);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  telemetry->close(0, "");
  EXPECT_EQ(lines_of(fs::path(telemetry->folder()) / "steps.0-0.jsonl").size(), 1u);
}

TEST_F(TelemetryTest, AModelThatReplacesAnotherHasItsUnits) {
  const auto telemetry = open();
  EXPECT_EQ(telemetry->add_units({""}), 0);
  EXPECT_EQ(telemetry->add_units({""}), 1);  // a teacher model beside the trained one
  telemetry->drop_units(0);
  EXPECT_EQ(telemetry->add_units({"other"}), 2);
  EXPECT_EQ(telemetry->add_units({""}), 0);
}

TEST_F(TelemetryTest, AFullDiskLosesNoEvent) {
  const auto telemetry = open();
  const auto events = fs::path(telemetry->folder()) / "events.0-0.jsonl";
  telemetry->event("before");
  while (!fs::exists(events)) usleep(1000);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{40, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  telemetry->event("meanwhile");
  usleep(600'000);  // two of its intervals: nothing shows that a write has failed
  telemetry->event("later");
  setrlimit(RLIMIT_FSIZE, &before);
  telemetry->close(0, "");
  std::vector<std::string> kinds;
  for (const auto& line : lines_of(events)) kinds.push_back(nlohmann::json::parse(line)["kind"]);
  EXPECT_EQ(kinds, (std::vector<std::string>{"before", "meanwhile", "recording_stopped", "later", "end"}));
}

TEST_F(TelemetryTest, TooManyEventsLeaveRoomForTheEnd) {
  const auto telemetry = open();
  const std::string text(1000, 'x');
  const auto events = fs::path(telemetry->folder()) / "events.0-0.jsonl";
  for (std::uintmax_t size = 0; size < 3u << 20;) {
    telemetry->event("noise", nlohmann::json{{"text", text}}.dump());
    std::error_code error;
    if (const auto now = fs::file_size(events, error); !error) size = now;
  }
  for (int i = 0; i < 900; ++i) telemetry->event("noise", nlohmann::json{{"text", text}}.dump());
  telemetry->event("death", R"({"rank":1})");
  telemetry->close(0, "");
  const auto lines = lines_of(events);
  EXPECT_NE(lines.back().find(R"("kind":"end")"), std::string::npos);
  EXPECT_NE(lines[lines.size() - 2].find(R"("kind":"death")"), std::string::npos);
  EXPECT_LE(fs::file_size(events), (4u << 20) + 1000);
}

TEST_F(TelemetryTest, AnUnusableFolderIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_FALSE(Telemetry::open(folder_ / "file", {}));
}

TEST_F(TelemetryTest, AHostWithoutThreadsIsAnError) {
  pthread_attr_t before, huge;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, std::size_t{1} << 50);  // no address space has room for it
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const auto opened = Telemetry::open(folder_ / "run", {});
  EXPECT_EQ(pthread_setattr_default_np(&before), 0);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), Code::kResourceExhausted);
  EXPECT_TRUE(fs::is_empty(folder_ / "run" / "processes"));
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
