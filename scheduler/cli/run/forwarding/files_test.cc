// A source reads a run's folder, and a copy writes another one: both are the same in the end, whatever gets lost on the way.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/telemetry/live_page.h"
#include "runtime/telemetry/segments.h"
#include "scheduler/cli/run/forwarding/copy.h"
#include "scheduler/cli/run/forwarding/pace.h"
#include "scheduler/cli/run/forwarding/source.h"

namespace shoal::scheduler::cli {
namespace {

namespace fs = std::filesystem;
using actors::RunFilePart;
using actors::RunFiles;
using runtime::LivePage;

constexpr std::size_t kMost = 64 << 10;

// A run's folder on two hosts.
class ForwardingTest : public ::testing::Test {
 protected:
  ForwardingTest() {
    fs::create_directories(source_folder_ / "processes");
    fs::create_directories(copy_folder_);
  }
  ~ForwardingTest() override { fs::remove_all(root_); }

  fs::path process(const std::string& name) {
    const auto out = source_folder_ / "processes" / name;
    fs::create_directories(out);
    if (!fs::exists(out / "process.json")) append(out / "process.json", "{}\n");
    return out;
  }
  static void append(const fs::path& file, const std::string& text) { std::ofstream(file, std::ios::app) << text; }
  static void beat(const fs::path& process, std::int64_t beat_us) {
    LivePage page{};
    page.magic = LivePage::kMagic, page.beat_us = beat_us;
    std::ofstream(process / "live", std::ios::binary).write(reinterpret_cast<const char*>(&page), sizeof page);
  }
  static std::string text(const fs::path& file) {
    std::stringstream out;
    out << std::ifstream(file).rdbuf();
    return out.str();
  }
  // The content of all files, by path.
  static std::map<std::string, std::string> content(const fs::path& folder) {
    std::map<std::string, std::string> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "processes"))
      if (entry.is_regular_file()) out[fs::relative(entry.path(), folder)] = text(entry.path());
    return out;
  }
  // The files that are different or on one side only, with their sizes.
  std::string differences() const {
    const auto source = content(source_folder_), copy = content(copy_folder_);
    std::string out;
    const auto compare = [&](const char* side, const auto& one, const auto& other) {
      for (const auto& [file, bytes] : one) {
        const auto found = other.find(file);
        if (found == other.end() || found->second != bytes) out += std::string(side) + file + " " + std::to_string(bytes.size()) + "\n";
      }
    };
    compare("source: ", source, copy);
    compare("copy: ", copy, source);
    return out;
  }
  Result<void> write(const RunFilesSource::Batch& batch, std::uint64_t sender = 1) {
    return copy_.write({sender, batch.parts}, batch.bytes);
  }
  // Sends until nothing is left.
  void send_all(std::size_t most = kMost) {
    source_.wake();
    for (;;) {
      const auto batch = source_.read(most);
      ASSERT_TRUE(write(batch));
      source_.confirm();
      if (batch.parts.empty()) return;
    }
  }
  Error refusal(RunFilePart part, const std::string& bytes = "") {
    part.size = bytes.size();
    const auto written = copy_.write({1, {std::move(part)}}, bytes);
    return written ? internal("it was written") : written.error();
  }

  const fs::path root_ = fs::path(testing::TempDir()) / ("forwarding" + std::to_string(getpid()));
  const fs::path source_folder_ = root_ / "there", copy_folder_ = root_ / "here";
  RunFilesSource source_{source_folder_, "b", 0};
  RunFilesCopy copy_{copy_folder_};
};

std::string merged(const std::vector<std::string_view>& lines) { return "sum of " + std::string(lines.front()); }

TEST_F(ForwardingTest, TheCopyIsTheSourceWhateverGetsLost) {
  std::mt19937 random(7);
  const auto chance = [&](int percent) { return static_cast<int>(random() % 100) < percent; };
  struct Writer {
    Fd folder;
    runtime::Segments steps, events;
    explicit Writer(const fs::path& path)
        : folder(open(path.c_str(), O_RDONLY | O_DIRECTORY)),
          steps(folder, "steps", {.bytes = 4000, .levels = 3}, merged),
          events(folder, "events", {.bytes = 1 << 20, .kept = 1, .levels = 1}) {}
  };
  std::vector<std::unique_ptr<Writer>> writers;
  for (const char* name : {"b-17-5", "b-18-5"}) writers.push_back(std::make_unique<Writer>(process(name)));
  for (int round = 0; round < 2000; ++round) {
    auto& writer = *writers[random() % 2];
    std::string lines;
    for (int i = chance(50) ? 1 : 30; i > 0; --i) lines += "row " + std::to_string(random()) + "\n";
    ASSERT_TRUE(writer.steps.append(lines));
    if (chance(20)) {
      ASSERT_TRUE(writer.events.append(std::string(random() % 9000, 'x') + "\n"));
    }
    if (chance(30)) beat(source_folder_ / "processes" / "b-17-5", round);
    if (chance(60)) continue;
    const auto batch = source_.read(1 << (9 + random() % 6));
    if (chance(20)) continue;  // the message got lost
    ASSERT_TRUE(write(batch));
    if (chance(20)) continue;  // the answer got lost
    source_.confirm();
  }
  send_all();
  EXPECT_EQ(differences(), "");
  EXPECT_GT(content(copy_folder_).size(), 9u);  // with levels
}

TEST_F(ForwardingTest, LivePagesComeFirstAndRowsWithinTheBudget) {
  for (const char* name : {"b-1-5", "b-2-5", "b-3-5"}) {
    for (int i = 0; i < 1000; ++i) append(process(name) / "steps.0-0.jsonl", "a row of twenty bytes\n");
    beat(process(name), 1);
  }
  std::set<std::string> with_rows;
  for (int round = 0; round < 3; ++round) {
    const auto batch = source_.read(20'000);
    EXPECT_LE(batch.bytes.size(), 20'000u);
    EXPECT_TRUE(batch.more);
    if (round == 0) {
      for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(batch.parts[i].file, i % 2 == 0 ? "process.json" : "live");
    }
    for (const auto& part : batch.parts)
      if (part.file.starts_with("steps")) with_rows.insert(part.process);
    ASSERT_TRUE(write(batch));
    source_.confirm();
  }
  EXPECT_GE(with_rows.size(), 2u);
  beat(process("b-3-5"), 2);
  EXPECT_EQ(source_.read(20'000, RunFilesSource::Which::kLive).parts.size(), 1u);
  send_all();
  EXPECT_EQ(differences(), "");
}

TEST_F(ForwardingTest, ALineBeyondTheBudgetComesAlone) {
  append(process("b-1-5") / "spans.0-0.jsonl", "short\n" + std::string(300'000, 'x') + "\nshort\n");
  append(process("b-2-5") / "steps.0-0.jsonl", "row\n");
  send_all(16 << 10);
  EXPECT_EQ(differences(), "");
}

TEST_F(ForwardingTest, APartOfALineStays) {
  const auto file = process("b-1-5") / "steps.0-0.jsonl";
  append(file, "whole\npart");
  send_all();
  EXPECT_EQ(text(copy_folder_ / "processes/b-1-5/steps.0-0.jsonl"), "whole\n");
  fs::resize_file(file, 0);  // as a process does where its disk is full
  send_all();
  append(file, "other\n");
  send_all();
  EXPECT_EQ(text(copy_folder_ / "processes/b-1-5/steps.0-0.jsonl"), "other\n");
}

TEST_F(ForwardingTest, EarlierRunsAndOtherHostsAreLeftOut) {
  process("b-1-5"), process("b-2-7"), process("c-2-7"), process("unnamed");
  const auto batch = RunFilesSource(source_folder_, "b", 6).read(kMost);
  ASSERT_EQ(batch.parts.size(), 1u);
  EXPECT_EQ(batch.parts[0].process, "b-2-7");
}

TEST_F(ForwardingTest, AProcessThatWasSilentIsReadAgain) {
  beat(process("b-1-5"), 1);
  send_all();
  for (int round = 0; round < 50; ++round) EXPECT_TRUE(source_.read(kMost).parts.empty());
  beat(process("b-1-5"), 2);
  int rounds = 1;
  while (rounds < 100 && source_.read(kMost).parts.empty()) ++rounds;
  EXPECT_LE(rounds, 40);
}

// Readers take the time of the page's last change for the process's last beat.
TEST_F(ForwardingTest, APageThatComesTwiceIsNoBeat) {
  beat(process("b-1-5"), 1);
  const auto batch = source_.read(kMost);
  ASSERT_TRUE(write(batch));
  const auto live = copy_folder_ / "processes/b-1-5/live";
  fs::last_write_time(live, fs::file_time_type(std::chrono::hours(1)));
  ASSERT_TRUE(write(batch));
  EXPECT_EQ(fs::last_write_time(live), fs::file_time_type(std::chrono::hours(1)));
}

TEST_F(ForwardingTest, OnlyNamesOfTheFormatAreWritten) {
  for (const char* name : {"", ".", "..", ".a", "a/b", "../a", "/tmp/a", "a\nb", "a b"}) {
    EXPECT_EQ(refusal({name, "steps.0-0.jsonl"}, "x").reason(), "RunFileRefused") << name;
  }
  for (const char* file :
       {"", ".", "..", "../steps.0-0.jsonl", "exit.json", "steps.jsonl", "steps.0-0", "others.0-0.jsonl", "steps.00-0.jsonl",
        "steps.0-00.jsonl", "steps.-1-0.jsonl", "steps.0--1.jsonl", "steps.99-0.jsonl", "process.json.new", "a/live"}) {
    EXPECT_EQ(refusal({"b-1-5", file}, "x").reason(), "RunFileRefused") << file;
    EXPECT_EQ(refusal({"b-1-5", file, 0, 0, true}).reason(), "RunFileRefused") << file;
  }
  EXPECT_EQ(refusal({"b-1-5", "live", 0, 0, true}).reason(), "RunFileRefused");
  EXPECT_EQ(refusal({"b-1-5", "live", 1}, "x").reason(), "RunFileRefused");
  EXPECT_FALSE(fs::exists(copy_folder_ / "processes"));
}

TEST_F(ForwardingTest, SizesAreBounded) {
  EXPECT_EQ(refusal({"b-1-5", "live"}, std::string(1000, 'x')).reason(), "RunFileRefused");
  EXPECT_EQ(refusal({"b-1-5", "events.0-0.jsonl", ~std::uint64_t{0}}, "x").reason(), "RunFileRefused");
  EXPECT_EQ(refusal({"b-1-5", "events.0-0.jsonl", 17 << 20}, "x").reason(), "RunFileRefused");
  EXPECT_FALSE(copy_.write({1, {{"b-1-5", "live", 0, 5, false}}}, "four"));
  EXPECT_FALSE(copy_.write({1, std::vector<RunFilePart>(2000, {"b-1-5", "steps.0-0.jsonl", 0, 0, false})}, ""));
  int files = 0;
  while (files < 1000 && copy_.write({1, {{"b-1-5", "steps.0-" + std::to_string(files) + ".jsonl", 0, 1, false}}}, "x")) ++files;
  EXPECT_LT(files, 100);
}

TEST_F(ForwardingTest, NoLinkIsFollowed) {
  const auto victim = root_ / "victim";
  append(victim, "untouched");
  ASSERT_TRUE(copy_.write({1, {{"b-1-5", "process.json", 0, 2, false}}}, "{}"));
  for (const char* file : {"steps.0-0.jsonl", "live", "process.json.new"})
    fs::create_symlink(victim, copy_folder_ / "processes/b-1-5" / file);
  for (const char* file : {"steps.0-0.jsonl", "live", "process.json"}) EXPECT_FALSE(copy_.write({1, {{"b-1-5", file, 0, 1, false}}}, "x"));
  EXPECT_EQ(text(victim), "untouched");
  ASSERT_EQ(mkfifo((copy_folder_ / "processes/b-1-5/samples.0-0.jsonl").c_str(), 0600), 0);
  EXPECT_FALSE(copy_.write({1, {{"b-1-5", "samples.0-0.jsonl", 0, 1, false}}}, "x"));
}

TEST_F(ForwardingTest, AProcessHasOneSenderAndOthersOfAMessageArrive) {
  fs::create_directories(copy_folder_ / "processes/a-1-5");
  const auto row = [](const char* process) { return RunFilePart{process, "steps.0-0.jsonl", 0, 1, false}; };
  EXPECT_TRUE(copy_.write({1, {row("a-1-5"), row("b-1-5")}}, "xx"));
  EXPECT_TRUE(copy_.write({2, {row("b-1-5"), row("c-1-5")}}, "yy"));
  EXPECT_TRUE(copy_.write({2, {row("a-1-5")}}, "y"));
  const std::map<std::string, std::string> expected = {{"processes/b-1-5/steps.0-0.jsonl", "x"}, {"processes/c-1-5/steps.0-0.jsonl", "y"}};
  EXPECT_EQ(content(copy_folder_), expected);
}

TEST_F(ForwardingTest, AFullDiskLeavesWholeLines) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "row " + std::to_string(i) + "\n";
  append(process("b-1-5") / "steps.0-0.jsonl", lines);
  send_all();
  append(process("b-1-5") / "steps.0-0.jsonl", lines);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{lines.size() + 20, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto written = write(source_.read(kMost));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, before);
  EXPECT_FALSE(written);
  EXPECT_EQ(text(copy_folder_ / "processes/b-1-5/steps.0-0.jsonl"), lines);
  send_all();
  EXPECT_EQ(differences(), "");
}

TEST_F(ForwardingTest, WhatAUserRemovesDoesNotComeBack) {
  append(process("b-1-5") / "steps.0-0.jsonl", "row\n");
  append(process("b-2-5") / "steps.0-0.jsonl", "row\n");
  send_all();
  fs::remove(copy_folder_ / "processes/b-1-5/steps.0-0.jsonl");
  fs::remove_all(copy_folder_ / "processes/b-2-5");
  append(process("b-1-5") / "steps.0-0.jsonl", "row\n");
  append(process("b-2-5") / "steps.0-0.jsonl", "row\n");
  send_all();
  EXPECT_EQ(content(copy_folder_).size(), 1u);
}

TEST(Pace, AMessageWithoutAnAnswerIsFollowedByASmallerOne) {
  Pace pace;
  for (int i = 0; i < 10; ++i) pace.answered(pace.budget(), std::chrono::milliseconds(1));
  ASSERT_EQ(pace.budget(), Pace::kMost);
  pace.lost();
  EXPECT_EQ(pace.budget(), Pace::kMost / 4);
  for (int i = 0; i < 10; ++i) pace.lost();
  EXPECT_EQ(pace.budget(), Pace::kLeast);
}

TEST(Pace, AMessageTakesAQuarterOfASecond) {
  using std::chrono::milliseconds;
  Pace pace;
  for (int i = 0; i < 10; ++i) pace.answered(pace.budget(), milliseconds(1));
  EXPECT_EQ(pace.budget(), Pace::kMost);
  pace.answered(100, milliseconds(1));  // so small a message says nothing about a fast link
  EXPECT_EQ(pace.budget(), Pace::kMost);
  pace.answered(Pace::kMost, milliseconds(1000));
  EXPECT_EQ(pace.budget(), Pace::kMost / 4);
  for (int i = 0; i < 10; ++i) pace.answered(pace.budget(), milliseconds(1000));
  EXPECT_EQ(pace.budget(), Pace::kLeast);
}

}  // namespace
}  // namespace shoal::scheduler::cli
