#include "scheduler/cli/runs/run_text.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "runtime/core/golden.h"
#include "scheduler/cli/runs/run_choice.h"
#include "scheduler/runs/simulated_run_fixture.h"

namespace shoal::scheduler::cli {
namespace {

using runs::SimulatedRun;
using runs::Trouble;

std::string text_of(const Table& table) {
  std::string out;
  const auto add = [&](const std::vector<std::string>& cells) {
    for (const auto& cell : cells) out += cell + " | ";
    out += "\n";
  };
  add(table.header);
  for (const auto& row : table.rows) add(row);
  return out;
}

// The run when its trouble is found, or after 5 s.
SimulatedRun simulated(Trouble trouble, std::uint32_t seed) {
  SimulatedRun out({.seed = seed, .trouble = trouble, .most_noise = 0.1, .least_step_us = 8'000, .most_step_us = 16'000});
  for (int poll = 0; poll < 1000; ++poll) {
    out.advance(100'000);
    if (trouble == Trouble::kNone && poll == 50) break;
    if (out.troubled() && runs::diagnose(out.run(), out.now_us())[0].code != "ok") break;
  }
  return out;
}

TEST(RunTextTest, TroublesReadAsRecorded) {
  setenv("TZ", "UTC", 1);
  std::string out;
  for (const auto trouble :
       {Trouble::kNone, Trouble::kSharedCpu, Trouble::kMoreWork, Trouble::kSlowLoader, Trouble::kSlowLoaderOfOne, Trouble::kExposed,
        Trouble::kStuckInForward, Trouble::kCutLink, Trouble::kDead, Trouble::kSilent, Trouble::kStopped, Trouble::kSlowSave,
        Trouble::kMemory, Trouble::kFullDisk, Trouble::kNotFinite, Trouble::kLossSpike, Trouble::kClockJump}) {
    const auto run = simulated(trouble, 7);
    const auto d = diagnosed(run.run(), run.now_us());
    auto shown = run.run();
    shown.name = "train";
    out += headline(shown, d) + "\n" + verdict_lines(d.verdicts, 5);
    if (trouble == Trouble::kSharedCpu || trouble == Trouble::kDead)
      out += text_of(rank_table(d.summary, 64)) + text_of(event_table(run.run(), 3));
    out += "\n";
  }
  expect_golden(out, "scheduler/cli/runs/testdata/troubles.txt");
}

TEST(RunTextTest, ADifferenceNamesThePlaceThatGrew) {
  const auto before = simulated(Trouble::kNone, 3);
  SimulatedRun after({.seed = 3, .trouble = Trouble::kNone, .most_noise = 0.1, .least_step_us = 8'000, .most_step_us = 16'000});
  for (int i = 0; i < 50; ++i) after.advance(100'000);
  auto slower = after.run();
  for (auto& p : slower.processes) {
    for (auto& row : p.steps.rows) row.in(runtime::Activity::kBackward) += 4'000, row.total_us += 4'000;
  }
  const auto same = runs::difference(before.run(), after.run());
  EXPECT_NE(same.sentence.find("no difference above the noise"), std::string::npos) << same.sentence;
  const auto d = runs::difference(before.run(), slower);
  EXPECT_NE(d.sentence.find("% longer, most in backward (+4.0 ms"), std::string::npos) << d.sentence;
  for (const auto& c : d.activities) EXPECT_EQ(c.differs, c.activity == "own" || c.activity == "bwd") << c.activity;
}

TEST(RunTextTest, ADifferenceNamesTheUnitThatGrew) {
  auto before = simulated(Trouble::kNone, 3).run(), after = before;
  for (auto* run : {&before, &after}) {
    for (auto& p : run->processes) {
      for (std::uint64_t step = 8; step < 80; step += 8) {
        const std::int64_t us = run == &after ? 3'000 : 1'000;
        p.spans.rows.push_back({step, 0, 0, {{runtime::Activity::kForward, 1, 0, us}, {runtime::Activity::kForward, 2, us, 1'000}}});
      }
      if (run == &after)
        for (auto& row : p.steps.rows) row.in(runtime::Activity::kForward) += 2'000, row.total_us += 2'000;
    }
  }
  const auto d = runs::difference(before, after);
  ASSERT_EQ(d.units.size(), 1u);
  EXPECT_EQ(d.units[0].unit, "layers.0");
  EXPECT_NE(d.sentence.find("most in forward of layers.0 (+2.0 ms, before 1.0 ms)"), std::string::npos) << d.sentence;
}

TEST(RunTextTest, ADifferenceNamesTheRankThatGrew) {
  const auto before = simulated(Trouble::kNone, 7).run();
  auto after = before;
  for (auto& p : after.processes) {
    for (auto& row : p.steps.rows) {
      row.total_us += 8'000;
      row.in(p.rank() == 1 ? runtime::Activity::kForward : runtime::Activity::kGather) += 8'000;
    }
  }
  auto d = runs::difference(before, after);
  EXPECT_NE(d.sentence.find("; rank 1 changed most: "), std::string::npos) << d.sentence;
  ASSERT_EQ(d.ranks.size(), before.processes.size());
  for (const auto& r : d.ranks) EXPECT_EQ(r.own.differs, r.rank == 1);
  EXPECT_EQ(runs::to_json(d)["ranks"][1]["rank"], 1);
  for (auto& p : after.processes)  // all ranks alike
    for (auto& row : p.steps.rows)
      if (p.rank() != 1) row.in(runtime::Activity::kGather) -= 8'000, row.in(runtime::Activity::kForward) += 8'000;
  EXPECT_EQ(runs::difference(before, after).sentence.find("rank"), std::string::npos);
}

TEST(RunTextTest, NamesOfOtherProcessesAreEscaped) {
  auto run = simulated(Trouble::kStuckInForward, 7).run();
  run.name = "a\x1b]0;owned\x07";
  for (auto& p : run.processes) p.facts.units = {"", "x\x1b[2J", "\n"};
  const auto d = diagnosed(run, 1);
  const auto text = headline(run, d) + verdict_lines(runs::diagnose(run, 1'800'000'000'000'000), 5);
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
}

TEST(RunTextTest, ARunIsFoundByNameOrPath) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / ("runs-" + std::to_string(getpid()));
  for (const char* name : {"one/processes", "two/processes", "none"}) std::filesystem::create_directories(folder / name);
  const auto listed = runs::list_runs({folder, folder / "absent"});
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(find_run("one", listed).value(), folder / "one");
  EXPECT_EQ(find_run(folder / "two", listed).value(), folder / "two");
  const auto wrong = find_run("onee", listed);
  EXPECT_EQ(wrong.error().code(), Code::kNotFound);
  EXPECT_NE(wrong.error().hint().find("did you mean one?"), std::string::npos);
  EXPECT_EQ(find_run(folder / "none", listed).error().code(), Code::kNotFound);
  const auto twice = runs::list_runs({folder, folder});
  EXPECT_EQ(find_run("one", twice).error().reason(), "Usage");
}

}  // namespace
}  // namespace shoal::scheduler::cli
