#include "scheduler/runs/run_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace shoal::scheduler::runs {
namespace {

namespace fs = std::filesystem;
using runtime::Activity;
using runtime::LivePage;
using runtime::MetricsRow;
using runtime::SampleRow;
using runtime::SpansRow;
using runtime::StepRow;

constexpr std::int64_t kNow = 1'700'000'000'000'000;

StepRow step(std::uint64_t number, std::int64_t us = 1000) {
  StepRow out;
  out.step = number, out.world = 2, out.end_us = kNow + static_cast<std::int64_t>(number) * us, out.total_us = us, out.longest_us = us;
  out.in(Activity::kForward) = us;
  return out;
}
StepRow steps(std::uint64_t from, std::uint64_t to) {
  auto out = step(from);
  for (auto n = from + 1; n <= to; ++n) out.add(step(n));
  return out;
}

class RunReaderTest : public ::testing::Test {
 protected:
  RunReaderTest() { fs::create_directories(process_); }
  ~RunReaderTest() override { fs::remove_all(folder_); }

  void append(const std::string& file, const std::string& text) { std::ofstream(process_ / file, std::ios::app) << text; }
  void append(const std::string& file, const StepRow& row) { append(file, to_line(row) + "\n"); }
  void write_facts(const std::string& host, int pid = 17) {
    append("process.json", R"({"schema":"shoal.process/1","role":"rank","rank":1,"world":2,"host":")" + host + R"(","pid":)" +
                               std::to_string(pid) + R"(,"start":5,"units":["","layers.0"],"device":"cpu","argv":["a.py"]})");
  }
  void write_live(std::int64_t beat_us, Activity activity = Activity::kForward) {
    LivePage page{};
    page.pid = 17, page.start_us = 5, page.beat_us = beat_us, page.since_us = beat_us, page.step = 3, page.rank = 1, page.world = 2,
    page.generation = 1, page.activity = static_cast<std::uint32_t>(activity), page.unit = 1, page.magic = LivePage::kMagic;
    std::ofstream(process_ / "live", std::ios::binary).write(reinterpret_cast<const char*>(&page), sizeof page);
  }
  RunReader reader(ReaderOptions options = {}) {
    options.host = "a";
    options.lives = [this](std::int64_t, std::int64_t) { return lives_; };
    auto opened = RunReader::open(folder_, options);
    EXPECT_TRUE(opened) << opened.error().to_string();
    return *std::move(opened);
  }
  std::vector<std::uint64_t> numbers(const RunReader& reader) {
    std::vector<std::uint64_t> out;
    for (const auto& row : reader.run().processes.at(0).steps.rows) out.push_back(row.step);
    return out;
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / ("run-" + std::to_string(getpid()));
  fs::path process_ = folder_ / "processes" / "a-17-5";
  bool lives_ = true;
};
using Numbers = std::vector<std::uint64_t>;

TEST_F(RunReaderTest, OnlyRunsFoldersAreRead) {
  EXPECT_EQ(RunReader::open(folder_ / "none").error().code(), Code::kNotFound);
  EXPECT_EQ(RunReader::open(process_).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(is_run_folder(folder_));
}

TEST_F(RunReaderTest, AFolderIsReadAsItWasWritten) {
  write_facts("a");
  write_live(kNow);
  append("steps.0-0.jsonl", step(1));
  append("spans.0-0.jsonl", to_line(SpansRow{1, 1, kNow, {{Activity::kGather, 1, 3, 4}}}) + "\n");
  SampleRow sample;
  sample.t_us = kNow, sample.rss = 99;
  append("samples.0-0.jsonl", to_line(sample) + "\n");
  append("metrics.0-0.jsonl", to_line(MetricsRow{kNow, 1, {{"loss", 2.5}}}) + "\n");
  append("events.0-0.jsonl", R"({"t":7,"kind":"begin","more":[1]})"
                             "\n");
  std::ofstream(folder_ / "exit.json") << R"({"exit_code":3,"cause":"rank 1 died","rank":1,"unix_s":9})";
  std::ofstream(folder_ / "checkpoint") << "/c/12\n";
  auto r = reader();
  EXPECT_TRUE(r.poll(kNow));
  const auto& run = r.run();
  ASSERT_EQ(run.processes.size(), 1u);
  const auto& p = run.processes[0];
  EXPECT_EQ(p.facts.host, "a");
  EXPECT_EQ(p.rank(), 1);
  EXPECT_EQ(p.unit_name(1), "layers.0");
  EXPECT_EQ(p.live->activity, Activity::kForward);
  EXPECT_EQ(p.live->step, 3u);
  EXPECT_EQ(p.steps.rows.size(), 1u);
  EXPECT_EQ(p.spans.rows.at(0).spans.at(0).length_us, 4);
  EXPECT_EQ(p.samples.rows.at(0).rss, 99);
  EXPECT_EQ(p.metrics.rows.at(0).values.at(0).second, 2.5);
  EXPECT_EQ(p.events.rows.at(0).fields["more"][0], 1);
  EXPECT_EQ(run.end->exit_code, 3);
  EXPECT_EQ(run.end->rank, 1);
  EXPECT_EQ(run.checkpoint, "/c/12");
  EXPECT_FALSE(r.poll(kNow + 1));
}

// A reader keeps the newest steps in detail, and parses no others: they are most of a long run's bytes.
TEST_F(RunReaderTest, OnlyTheNewestStepsInDetailAreRead) {
  write_facts("a");
  const auto spans = [](std::uint64_t number) { return to_line(SpansRow{number, 1, kNow, {{Activity::kGather, 1, 3, 4}}}) + "\n"; };
  append("spans.0-0.jsonl", "no row\n" + spans(1));
  append("spans.0-1.jsonl", std::string(600'000, 'x') + "\n" + spans(2));
  append("spans.0-2.jsonl", spans(3) + spans(4));
  auto r = reader({.most_detailed = 3});
  r.poll(kNow);
  const auto steps = [&] {
    Numbers out;
    for (const auto& row : r.run().processes.at(0).spans.rows) out.push_back(row.step);
    return out;
  };
  EXPECT_EQ(steps(), (Numbers{2, 3, 4}));
  EXPECT_EQ(r.run().processes[0].skipped_lines, 0u);
  append("spans.0-2.jsonl", spans(5));
  append("spans.0-3.jsonl", spans(6));
  r.poll(kNow + 10'000'000);
  EXPECT_EQ(steps(), (Numbers{4, 5, 6}));
}

TEST_F(RunReaderTest, TheRecordOfTheEndDecidesBeforeTheLastBeatIsOld) {
  write_facts("a");
  write_live(kNow);
  auto r = reader();
  r.poll(kNow);
  EXPECT_EQ(r.run().state, RunState::kRunning);
  std::ofstream(folder_ / "exit.json") << R"({"exit_code":137})";
  r.poll(kNow);
  EXPECT_EQ(r.run().state, RunState::kEnded);
}

TEST_F(RunReaderTest, AProcessNamesItsUnitsLater) {
  std::ofstream(process_ / "process.json") << R"({"role":"rank","rank":1,"units":[]})";
  auto r = reader();
  r.poll(kNow);
  EXPECT_EQ(r.run().processes[0].unit_name(1), "");
  std::ofstream(process_ / "new") << R"({"role":"rank","rank":1,"units":["","layers.0"]})";
  fs::rename(process_ / "new", process_ / "process.json");
  r.poll(kNow);
  EXPECT_EQ(r.run().processes[0].unit_name(1), "layers.0");
}

TEST_F(RunReaderTest, ProcessesOfAnEarlierRunAreLeftOut) {
  write_facts("a");
  auto r = reader({.left_out = {"a-17-5"}});
  r.poll(kNow);
  EXPECT_TRUE(r.run().processes.empty());
}

TEST_F(RunReaderTest, AHostWhoseClockIsLateIsNotLost) {
  write_facts("b");
  const auto written = fs::last_write_time(process_ / "process.json");
  const auto now_us =
      std::chrono::duration_cast<std::chrono::microseconds>(fs::file_time_type::clock::to_sys(written).time_since_epoch()).count();
  write_live(now_us - 120'000'000);
  auto r = reader();
  r.poll(now_us + 1'000'000);
  EXPECT_EQ(r.run().processes[0].life, Life::kAlive);
  fs::last_write_time(process_ / "live", written - std::chrono::seconds(120));
  auto again = reader();
  again.poll(now_us);
  EXPECT_EQ(again.run().processes[0].life, Life::kGone);
}

TEST_F(RunReaderTest, NestedTextIsNoRow) {
  const std::string deep = std::string(4'000, '[') + std::string(4'000, ']');
  append("process.json", R"({"role":)" + deep + "}");
  for (const char* file : {"steps.0-0.jsonl", "metrics.0-0.jsonl", "events.0-0.jsonl"})
    append(file, R"({"t":1,"kind":"begin","step":1,"us":1,"values":)" + deep + "}\n");
  std::ofstream(folder_ / "exit.json") << deep;
  auto r = reader();
  r.poll(kNow);
  EXPECT_TRUE(r.run().processes[0].steps.rows.empty());
  EXPECT_TRUE(r.run().processes[0].events.rows.empty());
}

TEST_F(RunReaderTest, OnlyWhatWasAppendedIsReadAndATornLineWaits) {
  auto r = reader();
  append("steps.0-0.jsonl", step(1));
  const auto line = to_line(step(2));
  append("steps.0-0.jsonl", line.substr(0, 20));
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{1}));
  append("steps.0-0.jsonl", line.substr(20) + "\n");
  append("steps.0-1.jsonl", step(3));
  EXPECT_TRUE(r.poll(kNow));
  EXPECT_EQ(numbers(r), (Numbers{1, 2, 3}));
  EXPECT_EQ(r.run().processes[0].steps.appended, 3u);
}

TEST_F(RunReaderTest, CoarseRowsCountOnlyForStepsThatNoFinerRowHas) {
  append("steps.2-0.jsonl", steps(1, 256));
  append("steps.1-0.jsonl", steps(257, 272));
  append("steps.1-0.jsonl", steps(273, 288));  // merged, but the finer file is still there
  append("steps.0-7.jsonl", step(273));
  append("steps.0-7.jsonl", step(274));
  append("steps.0-8.jsonl", step(289));
  auto r = reader();
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{256, 272, 273, 274, 289}));
  // Merged while the reader follows: it has these rows.
  fs::remove(process_ / "steps.0-7.jsonl");
  append("steps.1-0.jsonl", steps(289, 304));
  append("steps.0-9.jsonl", step(290));
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{256, 272, 273, 274, 289, 290}));
  EXPECT_EQ(r.run().processes[0].readings, 1u);
}

TEST_F(RunReaderTest, AReaderThatCameTooLateReadsTheProcessAnew) {
  append("steps.0-0.jsonl", step(1));
  auto r = reader();
  r.poll(kNow);
  fs::remove(process_ / "steps.0-0.jsonl");  // with step 2, which this reader has not read
  append("steps.1-0.jsonl", steps(1, 2));
  append("steps.0-1.jsonl", step(3));
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{2, 3}));
  EXPECT_EQ(r.run().processes[0].readings, 2u);
}

TEST_F(RunReaderTest, RowsOfASecondTrainingWithOlderNumbersStay) {
  append("steps.1-0.jsonl", steps(85, 100));
  auto again = step(1);
  again.end_us = kNow + 10'000'000;
  append("steps.0-1.jsonl", again);
  auto r = reader();
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{100, 1}));
}

TEST_F(RunReaderTest, OldRowsAreMergedInMemory) {
  std::string text;
  for (std::uint64_t n = 1; n <= 5000; ++n) text += to_line(step(n)) + "\n";
  append("steps.0-0.jsonl", text);
  auto r = reader({.most_rows = 100});
  r.poll(kNow);
  const auto& rows = r.run().processes[0].steps.rows;
  EXPECT_LE(rows.size(), 100u);
  std::int64_t sum = 0;
  for (const auto& row : rows) sum += row.steps;
  EXPECT_EQ(sum, 5000);
  EXPECT_EQ(rows.back().steps, 1);
  EXPECT_EQ(r.run().processes[0].steps.appended, 5000u);
}

TEST_F(RunReaderTest, ADamagedFolderCostsOnlyItsBadLines) {
  write_facts("a");
  append("steps.0-0.jsonl",
         std::string("{\"step\":1,\"us\":1e300}\n{\"step\":-1,\"us\":5}\n[[[[\n\x01\xff\n") + std::string(3000, 'x') + "\n");
  append("steps.0-0.jsonl", step(7));
  append("steps.0-0.jsonl", R"({"step":8,"us":9223372036854775807,"end":9223372036854775807})"
                            "\n");
  append("steps.0-0.jsonl", std::string(5000, 'y'));  // a line without an end
  append("events.0-0.jsonl", "{\"t\":\"x\",\"kind\":3}\n{\"t\":\"x\",\"kind\":\"end\"}\n");
  append("live", "short");
  append("steps.99-0.jsonl", step(1));
  append("steps.0--1.jsonl", step(1));
  append("steps.0-x.jsonl", step(1));
  append("metrics.0-0.jsonl", R"({"t":1,"step":1,"values":{"a":[],"b":"nan"}})"
                              "\n");
  ASSERT_EQ(mkfifo((process_ / "spans.0-0.jsonl").c_str(), 0600), 0);
  fs::create_symlink("/etc/passwd", process_ / "samples.0-0.jsonl");
  fs::create_directory(process_ / "samples.0-1.jsonl");
  fs::create_symlink(process_, folder_ / "processes" / "link");
  std::ofstream(folder_ / "processes" / "a-file") << "x";
  ASSERT_EQ(mkfifo((folder_ / "exit.json").c_str(), 0600), 0);
  auto r = reader({.most_line_bytes = 2000});
  r.poll(kNow);
  r.poll(kNow);
  ASSERT_EQ(r.run().processes.size(), 1u);
  const auto& p = r.run().processes[0];
  EXPECT_EQ(numbers(r), (Numbers{1, 7}));
  EXPECT_GE(p.skipped_lines, 5u);
  EXPECT_EQ(p.events.rows.size(), 1u);
  EXPECT_TRUE(p.spans.rows.empty());
  EXPECT_TRUE(p.samples.rows.empty());
  EXPECT_EQ(p.metrics.rows.at(0).values.size(), 1u);
  EXPECT_FALSE(p.live);
  EXPECT_FALSE(r.run().end);
  // The line without an end goes on, and ends.
  append("steps.0-0.jsonl", "\n" + to_line(step(9)) + "\n");
  r.poll(kNow);
  EXPECT_EQ(numbers(r), (Numbers{1, 7, 9}));
}

TEST_F(RunReaderTest, AProcessOfThisHostLivesByItsBeatAndItsPid) {
  write_facts("a");
  write_live(kNow);
  auto r = reader();
  const auto& run = r.run();
  r.poll(kNow + 100'000);
  EXPECT_EQ(run.processes[0].life, Life::kAlive);
  EXPECT_EQ(run.state, RunState::kRunning);
  lives_ = false;  // the beat is too recent: the process may be of another PID namespace
  r.poll(kNow + 200'000);
  EXPECT_EQ(run.processes[0].life, Life::kAlive);
  r.poll(kNow + kGoneAfterUs + 1);
  EXPECT_EQ(run.processes[0].life, Life::kGone);
  EXPECT_EQ(run.state, RunState::kLost);
  lives_ = true;  // the process lives, but is stopped
  r.poll(kNow + kSilentAfterUs + 1);
  EXPECT_EQ(run.processes[0].life, Life::kSilent);
  append("events.0-0.jsonl", R"({"t":7,"kind":"end","code":0})"
                             "\n");
  r.poll(kNow + kSilentAfterUs + 2);
  EXPECT_EQ(run.processes[0].life, Life::kEnded);
  EXPECT_EQ(run.state, RunState::kEnded);
}

TEST_F(RunReaderTest, AProcessOfAnotherHostLivesByItsBeatOnAnyClock) {
  write_facts("b");
  for (const std::int64_t skew : {std::int64_t{-3'600'000'000}, std::int64_t{0}, std::int64_t{3'600'000'000}}) {
    lives_ = false;  // without effect, since the reader asks only for pids of this host
    write_live(kNow + skew);
    auto r = reader();
    const auto& p = r.run().processes;
    r.poll(kNow);
    write_live(kNow + skew + 250'000);
    r.poll(kNow + 250'000);
    EXPECT_EQ(p[0].life, Life::kAlive) << skew;
    r.poll(kNow + 250'000 + kSilentAfterUs + 1);
    EXPECT_EQ(p[0].life, Life::kSilent) << skew;
    EXPECT_EQ(r.run().state, RunState::kRunning);
    r.poll(kNow + 250'000 + kLostAfterUs + 1);
    EXPECT_EQ(p[0].life, Life::kGone) << skew;
  }
}

TEST_F(RunReaderTest, AClockThatJumpsMakesNoProcessQuiet) {
  for (const std::int64_t jump : {std::int64_t{-3'600'000'000}, std::int64_t{3'600'000'000}}) {
    write_facts("a");
    write_live(kNow);
    auto r = reader();
    const auto& p = r.run().processes;
    r.poll(kNow, 10'000'000);
    write_live(kNow + 250'000);
    r.poll(kNow + 300'000, 10'300'000);
    r.poll(kNow + 400'000 + jump, 10'400'000);  // before the next beat
    EXPECT_EQ(p[0].life, Life::kAlive) << jump;
    EXPECT_EQ(p[0].quiet_us, 100'000);
    r.poll(kNow + 400'000 + jump, 10'300'000 + kSilentAfterUs + 1);
    EXPECT_EQ(p[0].life, Life::kSilent) << jump;
  }
}

// The kernel computes a process's start from the present time of day, so a jump of the clock moves it.
TEST_F(RunReaderTest, AProcessIsFoundAgainAfterItsClockHasJumped) {
  write_facts("a");
  write_live(kNow);
  append("events.0-0.jsonl", R"({"t":7,"kind":"clock","us":5000000})"
                             "\n");
  std::int64_t start_us = 0;
  ReaderOptions options;
  options.host = "a";
  options.lives = [&](std::int64_t, std::int64_t start) {
    start_us = start;
    return true;
  };
  auto r = RunReader::open(folder_, options).value();
  r.poll(kNow + 2 * kGoneAfterUs);
  EXPECT_EQ(start_us, 5'000'005);
}

TEST_F(RunReaderTest, TheSpaceOfTheFoldersDiskIsKnown) {
  write_facts("a");
  auto r = reader();
  r.poll(kNow);
  EXPECT_GT(r.run().disk_total, 0);
  EXPECT_GE(r.run().disk_total, r.run().disk_free);
}

TEST_F(RunReaderTest, TheKernelKnowsThisProcess) {
  EXPECT_TRUE(process_lives(getpid(), 0));
  EXPECT_TRUE(process_lives(getpid(), kNow * 2));
  EXPECT_FALSE(process_lives(getpid(), kNow / 2));  // an older process had this pid
  EXPECT_FALSE(process_lives(0, 0));
}

TEST_F(RunReaderTest, AListReadsOnlyTheEnds) {
  append("steps.1-0.jsonl", steps(1, 16));
  append("steps.0-0.jsonl", step(17));
  for (std::uint64_t n = 18; n <= 100; ++n) append("steps.0-1.jsonl", step(n));
  auto r = reader({.tail_bytes = 1000});
  r.poll(kNow);
  EXPECT_EQ(numbers(r).back(), 100u);
  EXPECT_LT(numbers(r).size(), 10u);
  EXPECT_GT(numbers(r).size(), 2u);
  append("steps.0-2.jsonl", step(101));
  r.poll(kNow);
  EXPECT_EQ(numbers(r).back(), 101u);
}

TEST_F(RunReaderTest, ManyProcessesShareTheRows) {
  for (int i = 0; i < 40; ++i) {
    const auto process = folder_ / "processes" / ("b-" + std::to_string(i) + "-1");
    fs::create_directory(process);
    std::ofstream out(process / "steps.0-0.jsonl");
    for (std::uint64_t n = 1; n <= 300; ++n) out << to_line(step(n)) << "\n";
  }
  auto r = reader({.most_processes = 30, .most_rows_together = 1000});
  r.poll(kNow);
  EXPECT_EQ(r.run().processes.size(), 30u);
  EXPECT_EQ(r.run().processes_left_out, 11u);
  for (const auto& p : r.run().processes) EXPECT_LE(p.steps.rows.size(), 100u);
}

}  // namespace
}  // namespace shoal::scheduler::runs
