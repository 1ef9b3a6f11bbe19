#include "scheduler/runs/verdict.h"

#include <cstdlib>
#include <map>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "scheduler/runs/simulated_run_fixture.h"

namespace shoal::scheduler::runs {
namespace {

std::uint32_t seeds(std::uint32_t otherwise) {
  const char* const text = std::getenv("SHOAL_SEEDS");
  return text == nullptr ? otherwise : std::max(static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)), otherwise);
}

std::string text_of(const Verdict& v) {
  std::string out = v.code + ": " + v.sentence;
  for (const auto& e : v.evidence) out += "; " + e;
  return out + "; next: " + v.next;
}

TEST(VerdictTest, HealthyRunsRaiseNoAlarm) {
  int alarms = 0;
  for (std::uint32_t seed = 1; seed <= seeds(200); ++seed) {
    SimulatedRun simulated({.seed = seed});
    for (int poll = 0; poll < 100; ++poll) {
      simulated.advance(200'000);
      const auto verdicts = diagnose(simulated.run(), simulated.now_us());
      ASSERT_FALSE(verdicts.empty());
      if (verdicts[0].code == "ok" || verdicts[0].code == "starting") continue;
      ADD_FAILURE() << "seed " << seed << ", poll " << poll << ", " << simulated.step_us() << " us: " << text_of(verdicts[0]);
      ++alarms;
      break;
    }
  }
  EXPECT_EQ(alarms, 0);
}

struct Case {
  Trouble trouble;
  const char* code;
  bool names_rank;
  int step_off;    // how far the step may be from the true one
  double limit_s;  // time in which 95 of 100 runs find the trouble
};

class TroubleTest : public ::testing::TestWithParam<Case> {};

TEST_P(TroubleTest, IsNamedWithItsRankAndStep) {
  const auto& c = GetParam();
  std::vector<double> seconds;
  const std::uint32_t runs = std::max(seeds(40) / 10, 40u);
  int wrong_steps = 0;
  for (std::uint32_t seed = 1; seed <= runs; ++seed) {
    SimulatedRun simulated({.seed = seed * 7919, .trouble = c.trouble, .most_noise = 0.15, .least_step_us = 5'000, .most_step_us = 25'000});
    bool found = false;
    for (int poll = 0; poll < 2000 && !found; ++poll) {
      simulated.advance(50'000);
      const auto v = diagnose(simulated.run(), simulated.now_us())[0];
      if (!simulated.troubled()) {
        EXPECT_TRUE(v.code == "ok" || v.code == "starting") << "seed " << seed << ": " << text_of(v);
        continue;
      }
      if (simulated.since_trouble_us() > 30'000'000) break;
      if (v.code == "ok" || v.code == "starting") continue;
      found = true;
      EXPECT_EQ(v.code, c.code) << "seed " << seed << ": " << text_of(v);
      EXPECT_TRUE(!c.names_rank || v.rank == simulated.trouble_rank()) << "seed " << seed << ": " << text_of(v);
      const auto off = static_cast<std::int64_t>(v.since_step) - static_cast<std::int64_t>(simulated.trouble_step());
      wrong_steps += std::abs(off) > c.step_off;
      EXPECT_LE(std::abs(off), 4 * c.step_off + 4) << "seed " << seed << ": " << text_of(v) << ", in truth " << simulated.trouble_step();
      EXPECT_FALSE(v.evidence.empty());
      EXPECT_FALSE(v.next.empty());
      seconds.push_back(static_cast<double>(simulated.since_trouble_us()) / 1e6);
      if (seed == 1) fmt::print("{}\n", text_of(v));
    }
    EXPECT_TRUE(found) << "seed " << seed << ": not found";
  }
  std::sort(seconds.begin(), seconds.end());
  ASSERT_FALSE(seconds.empty());
  const double most = seconds[seconds.size() * 95 / 100];
  fmt::print("{}: found in {:.2f} s (median), {:.2f} s (95 %), {:.2f} s (most) of {} runs; {} steps off by more than {}\n", c.code,
             seconds[seconds.size() / 2], most, seconds.back(), seconds.size(), wrong_steps, c.step_off);
  EXPECT_LE(most, c.limit_s);
  EXPECT_LE(wrong_steps, static_cast<int>(seconds.size()) / 10);
}

INSTANTIATE_TEST_SUITE_P(
    All, TroubleTest,
    ::testing::Values(Case{Trouble::kSharedCpu, "straggler", true, 3, 1}, Case{Trouble::kMoreWork, "straggler", true, 3, 1},
                      Case{Trouble::kSlowLoader, "slow_loader", false, 3, 1}, Case{Trouble::kSlowLoaderOfOne, "slow_loader", true, 3, 1},
                      Case{Trouble::kExposed, "exposed_communication", false, 3, 1}, Case{Trouble::kStuckInForward, "hang", true, 0, 1},
                      Case{Trouble::kStuckInLoader, "hang", true, 0, 6}, Case{Trouble::kCutLink, "hang", false, 0, 1},
                      Case{Trouble::kDead, "dead_rank", true, 0, 1}, Case{Trouble::kSilent, "silent_rank", true, 0, 5},
                      Case{Trouble::kStopped, "silent_rank", true, 0, 1.1}, Case{Trouble::kSlowSave, "slow_disk", true, 1, 2},
                      Case{Trouble::kMemory, "memory", true, 400, 4}, Case{Trouble::kFullDisk, "full_disk", false, 1, 1},
                      Case{Trouble::kNotFinite, "not_finite", true, 0, 1}, Case{Trouble::kLossSpike, "loss_spike", false, 0, 1},
                      Case{Trouble::kClockJump, "clock_jump", false, 1, 1}),
    [](const auto& info) { return fmt::format("{}{}", info.param.code, info.index); });

// ---- single cases ----

constexpr std::int64_t kNow = 1'700'000'000'000'000;

// Two ranks that have trained 40 steps of 10 ms until kNow.
Run trained() {
  Run run;
  run.state = RunState::kRunning;
  for (int rank = 0; rank < 2; ++rank) {
    auto& p = run.processes.emplace_back();
    p.facts.role = "rank", p.facts.rank = rank, p.facts.world = 2, p.facts.host = "a", p.facts.pid = 10 + rank;
    p.on_this_host = true, p.life = Life::kAlive;
    for (std::uint64_t step = 1; step <= 40; ++step) {
      runtime::StepRow row;
      row.step = step, row.rank = rank, row.world = 2, row.total_us = row.longest_us = 10'000;
      row.end_us = kNow - static_cast<std::int64_t>(40 - step) * 10'000;
      row.in(runtime::Activity::kForward) = 9'000, row.in(runtime::Activity::kGather) = 1'000;
      p.steps.rows.push_back(row);
    }
    p.live.emplace();
    p.live->pid = 10 + rank, p.live->rank = rank, p.live->world = 2, p.live->step = 40, p.live->start_us = kNow - 1'000'000;
    p.live->since_us = p.live->beat_us = kNow;
  }
  return run;
}
std::string code_of(const Run& run) { return diagnose(run, kNow + 1'000'000)[0].code; }
void add_loss(Run& run, const std::string& name, std::initializer_list<double> values) {
  std::uint64_t step = 40 - values.size();
  for (const double v : values) run.processes[0].metrics.rows.push_back({kNow, ++step, {{name, v}}});
}
void add_event(Run& run, const char* kind, nlohmann::json fields) {
  run.processes[0].events.rows.push_back({kNow, kind, std::move(fields)});
}

TEST(VerdictTest, ARunWithoutTroubleSaysSo) {
  auto run = trained();
  const auto v = diagnose(run, kNow);
  ASSERT_EQ(v.size(), 1u);
  EXPECT_EQ(v[0].sentence, "2 ranks train, 10 ms per step: no trouble is known");
  EXPECT_EQ(v[0].evidence[0], "10 ms per step, 10 % of it exposed communication");
  EXPECT_EQ(to_json(v[0])["state"], "ok");
  EXPECT_EQ(diagnose({}, kNow)[0].code, "empty");
}

TEST(VerdictTest, OnlyALossThatStaysInfiniteIsATrouble) {
  auto run = trained();
  add_loss(run, "best_loss", {INFINITY, INFINITY});
  add_loss(run, "lr", {NAN, NAN});
  add_loss(run, "loss", {2, INFINITY, 2});
  EXPECT_EQ(code_of(run), "ok");
  add_loss(run, "train/loss", {2, NAN});
  EXPECT_EQ(code_of(run), "not_finite");
}

TEST(VerdictTest, ALossNearZeroMayLeap) {
  auto run = trained();
  add_loss(run, "loss", {4,    3,    2,    1,    1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-7,
                         1e-7, 1e-7, 1e-7, 1e-7, 1e-7, 1e-7, 1e-7, 1e-7, 2e-6, 2e-6, 2e-6, 2e-6});
  EXPECT_EQ(code_of(run), "ok");
}

TEST(VerdictTest, OneInfiniteGradientIsNoTroubleAndSeveralAre) {
  auto run = trained();
  for (const std::uint64_t step : {38, 39}) add_event(run, "not_finite", {{"what", "grad_norm"}, {"step", step}});
  EXPECT_EQ(code_of(run), "ok");
  add_event(run, "not_finite", {{"what", "grad_norm"}, {"step", 40u}});
  const auto v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.code, "not_finite");
  EXPECT_EQ(v.since_step, 38u);
}

TEST(VerdictTest, ARankOfAnEarlierAttemptIsNotDead) {
  auto run = trained();
  auto old = run.processes[1];
  old.life = Life::kGone, old.facts.pid = 5, old.live->pid = 5;
  for (auto& row : old.steps.rows) row.end_us -= 60'000'000;
  old.live->start_us -= 60'000'000, old.live->beat_us -= 60'000'000;
  run.processes.insert(run.processes.begin(), old);
  EXPECT_EQ(code_of(run), "ok");
  run.processes.pop_back();  // rank 1 of this attempt has not begun yet
  EXPECT_EQ(code_of(run), "ok");
}

TEST(VerdictTest, EndsOfRunsDiffer) {
  auto run = trained();
  run.state = RunState::kEnded;
  for (auto& p : run.processes) p.life = Life::kEnded;
  EXPECT_EQ(diagnose(run, kNow)[0].sentence, "the run ended in order after 40 steps");
  run.end = RunEnd{
      .exit_code = 1, .cause = "rank 1 raised ValueError: x\nmore", .rank = 1, .retryable = false, .checkpoint = "/c/30", .unix_s = 9};
  auto v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.sentence, "the run failed with exit code 1: rank 1 raised ValueError: x");
  EXPECT_EQ(v.rank, 1);
  EXPECT_EQ(v.evidence.back(), "newest checkpoint: /c/30");
  // A rank that has died before is the cause.
  run.processes[1].life = Life::kGone;
  v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.code, "dead_rank");
  EXPECT_EQ(v.state, Health::kFailed);
  run.end.reset();
  run.state = RunState::kLost;
  run.processes[0].life = Life::kGone;
  EXPECT_EQ(diagnose(run, kNow)[0].code, "lost");
}

TEST(VerdictTest, ASignalThatEndsARunIsItsCauseAndNotTheRanksThatItKills) {
  auto run = trained();
  run.state = RunState::kEnded;
  run.end = RunEnd{.exit_code = 130, .cause = "rank 0 was killed by SIGTERM", .rank = 0, .retryable = true, .checkpoint = "", .unix_s = 9};
  for (auto& p : run.processes) p.life = Life::kGone;
  add_event(run, "verdict", {{"state", "stopped"}, {"code", "hang"}, {"sentence", "rank 1 is stuck"}});
  const auto all = diagnose(run, kNow);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].sentence, "the run was ended by SIGINT");
  EXPECT_EQ(all[0].evidence.at(0), "before that: rank 1 is stuck");
}

TEST(VerdictTest, TheNewestFitOfAFolderDecides) {
  auto run = trained();
  run.state = RunState::kEnded;
  for (auto& p : run.processes) p.life = Life::kEnded;
  Process earlier, driver;
  earlier.facts.role = driver.facts.role = "driver";
  earlier.life = driver.life = Life::kEnded;
  earlier.facts.start_us = kNow - 60'000'000, driver.facts.start_us = kNow;
  earlier.events.rows.push_back({kNow - 30'000'000, "end", {{"code", 1}, {"cause", "ValueError"}}});
  driver.events.rows.push_back({kNow, "end", {{"code", 0}}});
  run.processes.push_back(earlier), run.processes.push_back(driver);
  EXPECT_EQ(code_of(run), "ended");
  run.processes.back().events.rows.back().fields["code"] = 1;
  EXPECT_EQ(code_of(run), "failed");
}

TEST(VerdictTest, AnEvaluationOfOneRankOnlyCostsTimeUntilItTakesLong) {
  auto run = trained();
  for (auto& p : run.processes) p.held_polls = 20, p.live->since_us = kNow;
  run.processes[0].live->activity = runtime::Activity::kSync;
  run.processes[1].live->activity = runtime::Activity::kElsewhere;
  for (const auto& [seconds, state] : {std::pair(12, Health::kSlow), std::pair(130, Health::kStopped)}) {
    for (auto& p : run.processes) p.live->beat_us = kNow + seconds * 1'000'000;
    const auto v = diagnose(run, kNow)[0];
    EXPECT_EQ(v.code, "hang");
    EXPECT_EQ(v.state, state);
  }
}

TEST(VerdictTest, AWaitForARankIsNotedBeforeItIsATrouble) {
  auto run = trained();
  for (auto& p : run.processes) p.held_polls = 20, p.live->since_us = kNow, p.live->beat_us = kNow + 700'000;
  run.processes[0].live->activity = runtime::Activity::kGather;
  run.processes[1].live->activity = runtime::Activity::kElsewhere;
  const auto all = diagnose(run, kNow);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].code, "ok");
  EXPECT_EQ(all[1].code, "waiting");
  EXPECT_EQ(all[1].state, Health::kOk);
  EXPECT_EQ(all[1].rank, 1);
  EXPECT_EQ(all[1].since_step, 41u);
  EXPECT_EQ(all[1].sentence,
            "the other ranks wait for rank 1, which has been in the program, outside of the training step since step 41, for 700 ms");
  run.processes[0].live->activity = runtime::Activity::kElsewhere;  // both evaluate
  EXPECT_EQ(diagnose(run, kNow).size(), 1u);
}

// A rank that is killed has not shown its last steps. The others have not ended a step without it.
TEST(VerdictTest, TheStepOfADeathIsThatOfTheOthersWaits) {
  auto run = trained();
  auto& dead = run.processes[1];
  dead.life = Life::kGone, dead.live->step = 28;
  dead.steps.rows.erase(dead.steps.rows.begin() + 25, dead.steps.rows.end());
  EXPECT_EQ(diagnose(run, kNow)[0].since_step, 41u);
  run.state = RunState::kEnded;
  run.end = RunEnd{.exit_code = 137, .cause = "rank 1 was killed by SIGKILL", .rank = 1, .retryable = true, .checkpoint = "", .unix_s = 9};
  for (const auto& v : diagnose(run, kNow)) {
    EXPECT_EQ(v.since_step, 41u) << v.code;
    EXPECT_EQ(v.rank, 1) << v.code;
    EXPECT_EQ(v.host, "a") << v.code;
  }
  run.processes[0].live->generation = 2, run.processes[0].live->step = 90;  // rank 0 has gone on without the dead rank
  run.state = RunState::kRunning, run.end.reset();
  EXPECT_EQ(diagnose(run, kNow)[0].since_step, 29u);
}

TEST(VerdictTest, DeathsThatATrainingSurvivesAreANote) {
  auto run = trained();
  auto& driver = run.processes.emplace_back();
  driver.facts.role = "driver", driver.life = Life::kAlive;
  const auto happens = [&](const char* kind, nlohmann::json fields) { run.processes.back().events.rows.push_back({kNow, kind, fields}); };
  happens("death", {{"rank", 1}, {"cause", "SIGKILL"}});
  EXPECT_EQ(diagnose(run, kNow).size(), 1u);
  happens("generation", {{"cause", "dies"}, {"step", 20}, {"steps_lost", 0}, {"pause_us", 300'000}});
  happens("death", {{"rank", 0}, {"cause", "SIGSEGV\nmore"}});
  happens("generation", {{"cause", "dies"}, {"step", 30}, {"steps_lost", 0}, {"pause_us", 200'000}});
  const auto all = diagnose(run, kNow);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].code, "ok");
  EXPECT_EQ(all[1].sentence, "2 deaths, 0 steps lost: the training has gone on each time, after pauses of 500 ms in all");
  EXPECT_EQ(all[1].evidence[0], "the last one before step 31: SIGSEGV");
  EXPECT_EQ(all[1].state, Health::kOk);
}

TEST(VerdictTest, ALossBelongsToTheRankThatWasFirst) {
  auto run = trained();
  const auto happens = [&](std::size_t rank, const char* kind, std::uint64_t step) {
    run.processes[rank].events.rows.push_back({kNow, kind, {{"what", "loss"}, {"step", step}, {"value", "nan"}}});
  };
  happens(1, "not_finite", 37);
  happens(0, "not_finite", 38);
  auto v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.code, "not_finite");
  EXPECT_EQ(v.rank, 1);
  EXPECT_EQ(v.since_step, 37u);
  happens(0, "not_finite", 37);  // a mean over ranks, which names no rank
  EXPECT_FALSE(diagnose(run, kNow)[0].rank.has_value());
  happens(0, "finite", 39);
  EXPECT_EQ(diagnose(run, kNow)[0].rank, 1);
  happens(1, "finite", 39);
  EXPECT_EQ(code_of(run), "ok");
}

// Rank 1 computes 18 ms instead of 9 in the last `steps` of 400, during which it has used and wanted a CPU for these parts of the time.
Run slowed(std::uint64_t steps, double cpu, double wanted) {
  Run run = trained();
  for (auto& p : run.processes) {
    p.steps.rows.clear();
    const bool mine = p.facts.rank == 1;
    for (std::uint64_t step = 1; step <= 400; ++step) {
      runtime::StepRow row;
      const bool slow = step > 400 - steps;
      row.step = step, row.rank = p.facts.rank, row.world = 2, row.total_us = row.longest_us = slow ? 20'000 : 10'000;
      row.end_us =
          kNow - static_cast<std::int64_t>(400 - step) * (slow ? 20'000 : 10'000) - (slow ? 0 : static_cast<std::int64_t>(steps) * 10'000);
      row.in(runtime::Activity::kForward) = slow && mine ? 18'000 : 9'000;
      row.in(runtime::Activity::kGather) = row.total_us - row.in(runtime::Activity::kForward);
      row.cpu_us = slow && mine ? static_cast<std::int64_t>(cpu * 20'000) : 5'000;
      p.steps.rows.push_back(row);
    }
    for (int s = 10; s >= 0; --s) {
      auto& sample = p.samples.rows.emplace_back();
      sample.t_us = kNow - s * 1'000'000, sample.pressure_cpu = 90;
      sample.runqueue_us = static_cast<std::int64_t>((10 - s) * (mine ? wanted : 0.2) * 1e6);
    }
  }
  return run;
}

TEST(VerdictTest, ARankThatGetsLessOfSharedCpusIsAStragglerOnlyAfterAWhile) {
  EXPECT_EQ(code_of(slowed(100, 0.25, 0.65)), "ok");         // for 2 s
  EXPECT_EQ(code_of(slowed(300, 0.25, 0.65)), "straggler");  // for 6 s
  EXPECT_EQ(code_of(slowed(100, 0.25, 0.2)), "straggler");   // it sleeps
  EXPECT_EQ(code_of(slowed(100, 0.9, 0.2)), "straggler");    // it computes more
}

TEST(VerdictTest, ASlowDiskIsThatOfTheRankWhichWrote) {
  auto run = trained();
  const auto save = [&](std::int64_t us, std::int64_t own_us, std::size_t rank) {
    run.processes[rank].events.rows.push_back(
        {kNow, "save", {{"step", 40}, {"bytes", 10'000'000}, {"us", us}, {"own_us", own_us}, {"path", "/c"}}});
  };
  for (int i = 0; i < 3; ++i) save(60'000, 50'000, 0), save(60'000, 50'000, 1);
  EXPECT_EQ(code_of(run), "ok");
  save(3'000'000, 60'000, 0), save(3'000'000, 2'950'000, 1);
  const auto v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.code, "slow_disk");
  EXPECT_EQ(v.rank, 1);
  EXPECT_EQ(v.since_step, 40u);
  // Other programs take the CPUs, and nothing waits for a disk.
  for (auto& p : run.processes) {
    for (std::int64_t s = 5; s >= 0; --s) {
      auto& sample = p.samples.rows.emplace_back();
      sample.t_us = kNow - s * 1'000'000, sample.cpu_us = (5 - s) * 200'000, sample.runqueue_us = (5 - s) * 700'000;
      sample.pressure_cpu = 60;
    }
  }
  EXPECT_EQ(code_of(run), "ok");
  for (auto& p : run.processes)  // but the saving process slept
    for (auto& sample : p.samples.rows)
      if (sample.t_us > kNow - 3'000'000) sample.cpu_us = 400'000, sample.runqueue_us = 1'400'000;
  EXPECT_EQ(code_of(run), "slow_disk");
}

TEST(VerdictTest, ADiskWithoutRoomForASampleIsFullByTheReadersLook) {
  auto run = trained();
  run.disk_total = 1'000'000'000'000, run.disk_free = 400'000'000'000;
  EXPECT_EQ(code_of(run), "ok");
  run.disk_free = 0;
  const auto v = diagnose(run, kNow)[0];
  EXPECT_EQ(v.code, "full_disk");
  EXPECT_EQ(v.since_step, 41u);
  EXPECT_EQ(v.sentence, "the disk of the run's folder is full on host a since step 41: recording has stopped, and checkpoints may fail");
  run.disk_total = 100'000'000, run.disk_free = 40'000'000;  // a small disk
  EXPECT_EQ(code_of(run), "ok");
  run.disk_free = 20'000'000;
  EXPECT_EQ(code_of(run), "full_disk");
}

TEST(VerdictTest, PagesThatArriveLateAreNoHang) {
  auto run = trained();
  for (auto& p : run.processes) p.held_polls = 20, p.live->activity = runtime::Activity::kGather, p.live->since_us = kNow - 100'000;
  run.processes[1].live->activity = runtime::Activity::kForward;
  EXPECT_EQ(diagnose(run, kNow + 3'000'000)[0].code, "ok");
  for (auto& p : run.processes) p.live->beat_us = kNow + 3'000'000;
  const auto v = diagnose(run, kNow - 3'600'000'000)[0];  // another host's clock
  EXPECT_EQ(v.code, "hang");
  EXPECT_EQ(v.rank, 1);
}

TEST(VerdictTest, NamesInCommandsAreQuoted) {
  auto run = trained();
  run.processes[1].facts.host = "b; rm -rf /";
  run.processes[1].on_this_host = false;
  run.processes[1].life = Life::kSilent, run.processes[1].quiet_us = 5'000'000;
  EXPECT_EQ(diagnose(run, kNow)[0].next, "ssh 'b; rm -rf /' uptime");
}

}  // namespace
}  // namespace shoal::scheduler::runs
