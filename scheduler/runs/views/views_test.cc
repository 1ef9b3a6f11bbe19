#include "scheduler/runs/views/views.h"

#include <gtest/gtest.h>

#include "scheduler/runs/views/critical_path.h"
#include "scheduler/runs/views/event_text.h"

namespace shoal::scheduler::runs {
namespace {

using nlohmann::json;
using runtime::Activity;

constexpr std::int64_t kBegin = 1'790'000'000'000'000, kSecond = 1'000'000;

Process rank_process(int rank, int world, const std::string& host) {
  Process out;
  out.folder = host + "-" + std::to_string(rank);
  out.facts = {"rank", rank, world, 0, host, 100 + rank, kBegin, {"", "layers.0"}, {"train.py"}, "cpu"};
  out.life = Life::kAlive;
  return out;
}

runtime::StepRow step_row(std::uint64_t step, int rank, std::int64_t forward, std::int64_t gather) {
  runtime::StepRow out;
  out.step = step, out.rank = rank, out.world = 2;
  out.in(Activity::kForward) = forward, out.in(Activity::kGather) = gather;
  out.total_us = out.longest_us = forward + gather;
  out.end_us = kBegin + static_cast<std::int64_t>(step) * kSecond;
  return out;
}

// Two ranks, of which rank 1 computes 300 instead of 200 us.
Run two_ranks(std::uint64_t steps) {
  Run out;
  out.name = "small", out.state = RunState::kRunning;
  for (int rank = 0; rank < 2; ++rank) {
    Process p = rank_process(rank, 2, rank == 0 ? "a" : "b");
    for (std::uint64_t s = 1; s <= steps; ++s) p.steps.rows.push_back(step_row(s, rank, rank == 0 ? 200 : 300, rank == 0 ? 150 : 50));
    p.steps.appended = steps;
    out.processes.push_back(std::move(p));
  }
  return out;
}

json view(const Run& run, const std::string& name, std::map<std::string, std::string> query = {}) {
  auto out = view_of(run, json::array(), {name, std::move(query)}, kBegin + 3600 * kSecond);
  EXPECT_TRUE(out) << name;
  return out ? *out : json();
}

void happens(Process& p, const json& fields) {
  p.events.rows.push_back({fields["t"], fields["kind"], fields});
  ++p.events.appended;
}

TEST(Views, EachOneIsAnsweredForARunWithoutProcesses) {
  runs::Run run;
  run.name = "empty";
  for (const auto name : kViews) EXPECT_TRUE(view(run, std::string(name)).is_object()) << name;
  EXPECT_EQ(snapshot_of(run, json::array(), kBegin)["views"].size(), std::size(kViews));
}

TEST(Views, StepsAreMeansOverRanksAndStepsOfABucket) {
  const json whole = view(two_ranks(8), "steps", {{"points", "10"}});
  EXPECT_EQ(whole["width"], 1);
  EXPECT_EQ(whole["columns"]["step"], json({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(whole["columns"]["fwd"][0], 250);
  EXPECT_EQ(whole["columns"]["gather"][0], 100);
  EXPECT_EQ(whole["columns"]["us"][0], 350);
  EXPECT_EQ(whole["columns"]["max"][0], 350);
  const json coarse = view(two_ranks(37), "steps", {{"points", "10"}});
  EXPECT_EQ(coarse["width"], 4);
  EXPECT_EQ(coarse["columns"]["step"], json({4, 8, 12, 16, 20, 24, 28, 32, 36, 37}));
  EXPECT_EQ(coarse["columns"]["us"][9], 350);
}

TEST(Views, ARowOfSeveralStepsCountsEachOfThem) {
  runs::Run run = two_ranks(0);
  auto many = step_row(16, 0, 1600, 0);
  many.steps = 16;
  run.processes[0].steps.rows = {many, step_row(17, 0, 1800, 0)};
  const json whole = view(run, "steps", {{"points", "10"}});
  EXPECT_EQ(whole["width"], 2);
  EXPECT_EQ(whole["columns"]["us"], json({100, 1800}));
}

// As the client merges: it keeps what lies before `since`, and appends the answer.
json merged(const json& have, const json& more) {
  json out = json::object();
  const json& steps = have["steps_so_far"];
  for (const auto& [name, values] : have["columns"].items()) {
    json column = json::array();
    for (std::size_t i = 0; i < values.size() && steps[i] < more["since"]; ++i) column.push_back(values[i]);
    for (const auto& value : more["columns"][name]) column.push_back(value);
    out[name] = std::move(column);
  }
  return out;
}

TEST(Views, AnAnswerToACursorHasOnlyTheNewPartOfTheWhole) {
  json have = view(two_ranks(60), "steps", {{"points", "40"}});
  for (std::uint64_t steps = 61; steps <= 80; ++steps) {
    const auto run = two_ranks(steps);
    const json more = view(run, "steps", {{"points", "40"}, {"cursor", have["cursor"]}});
    ASSERT_FALSE(more["reset"].get<bool>());
    EXPECT_LE(more["columns"]["step"].size(), 2u);
    have["steps_so_far"] = have["columns"]["step"];
    have["columns"] = merged(have, more);
    have["cursor"] = more["cursor"];
    EXPECT_EQ(have["columns"], view(run, "steps", {{"points", "40"}})["columns"]) << steps;
  }
}

TEST(Views, AWiderBucketAndAFolderReadAnewBeginAgain) {
  const json have = view(two_ranks(40), "steps", {{"points", "40"}});
  EXPECT_TRUE(view(two_ranks(41), "steps", {{"points", "40"}, {"cursor", have["cursor"]}})["reset"].get<bool>());
  runs::Run run = two_ranks(40);
  run.processes[1].readings = 2;
  EXPECT_TRUE(view(run, "steps", {{"points", "40"}, {"cursor", have["cursor"]}})["reset"].get<bool>());
  for (const char* wrong : {"", "x", "1.1.1", "1.1.1.", "-1.1.1.1", "1.1.1.1.1"})
    EXPECT_TRUE(view(run, "steps", {{"cursor", wrong}})["reset"].get<bool>()) << wrong;
}

TEST(Views, StepsOfARangeAreFiner) {
  const runs::Run run = two_ranks(1000);
  EXPECT_EQ(view(run, "steps", {{"points", "100"}})["width"], 16);
  const json part = view(run, "steps", {{"points", "100"}, {"from", "101"}, {"to", "150"}});
  EXPECT_EQ(part["width"], 1);
  EXPECT_EQ(part["columns"]["step"].size(), 50u);
  EXPECT_EQ(part["columns"]["step"][0], 101);
}

TEST(Views, MetricsLeaveGapsWhereTheyAreNotFinite) {
  runs::Run run = two_ranks(4);
  for (std::uint64_t s = 1; s <= 4; ++s) {
    runtime::MetricsRow row{kBegin, s, {{"loss", s == 3 ? std::nan("") : static_cast<double>(s)}}};
    if (s == 2) row.values.emplace_back("lr", 0.5);
    run.processes[0].metrics.rows.push_back(row);
  }
  const json out = view(run, "metrics");
  EXPECT_EQ(out["steps"], json({1, 2, 3, 4}));
  EXPECT_EQ(out["series"][0]["values"], json({1.0, 2.0, nullptr, 4.0}));
  EXPECT_EQ(out["series"][0]["not_finite"], 1);
  EXPECT_EQ(out["series"][1]["values"], json({nullptr, 0.5, nullptr, nullptr}));
  EXPECT_EQ(view(run, "summary")["metrics"]["loss"], 4.0);
}

TEST(Views, MemoryTakesTheMostResidentAndTheLeastFreeBytes) {
  runs::Run run = two_ranks(1);
  for (int rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < 20; ++i) {
      runtime::SampleRow row;
      row.t_us = kBegin + i * kSecond, row.rss = 1000 * rank + i, row.host_free = 5000 - i, row.host_total = 9000;
      run.processes[static_cast<std::size_t>(rank)].samples.rows.push_back(row);
    }
  }
  const json out = view(run, "memory", {{"points", "10"}, {"limit", "1"}, {"offset", "1"}});
  EXPECT_EQ(out["width"], 2);
  EXPECT_EQ(out["total"], 2);
  ASSERT_EQ(out["series"].size(), 1u);
  EXPECT_EQ(out["series"][0]["rank"], 1);
  EXPECT_EQ(out["series"][0]["values"][0], 1001);
  EXPECT_EQ(out["hosts"][1]["values"][9], 4981);
  EXPECT_EQ(out["t"][1], kBegin / kSecond + 2);
  // The page of another process begins anew.
  EXPECT_TRUE(view(run, "memory", {{"points", "10"}, {"limit", "1"}, {"cursor", out["cursor"]}})["reset"].get<bool>());
}

TEST(Views, MemoryByKindStandsBesideItsPrediction) {
  runs::Run run = two_ranks(1);
  runtime::SampleRow sample;
  sample.t_us = kBegin;
  for (auto& p : run.processes) p.samples.rows.push_back(sample);
  happens(run.processes[1],
          {{"t", kBegin}, {"kind", "memory"}, {"kinds", {{"weights", 10}, {"x", "y"}}}, {"predicted", {{"weights", 12}, {"unit", 3}}}});
  const json series = view(run, "memory")["series"];
  EXPECT_FALSE(series[0].contains("kinds"));
  EXPECT_EQ(series[1]["kinds"], json({{"weights", 10}}));
  EXPECT_EQ(series[1]["predicted"], json({{"weights", 12}, {"unit", 3}}));
}

TEST(Views, WorkersShowTheStragglerFirstIfSortedByScore) {
  const json out = view(two_ranks(100), "workers", {{"sort", "score"}});
  ASSERT_EQ(out["rows"].size(), 2u);
  EXPECT_EQ(out["rows"][0]["rank"], 1);
  EXPECT_EQ(out["rows"][0]["own"], json({300, 300, 300, 300, 300}));
  EXPECT_DOUBLE_EQ(out["rows"][0]["score"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(out["rows"][1]["score"].get<double>(), 0);
  EXPECT_NEAR(out["rows"][1]["exposed"].get<double>(), 150.0 / 350, 1e-9);
  EXPECT_FALSE(view_of(two_ranks(1), {}, {"workers", {{"sort", "name"}}}, kBegin));
}

TEST(Views, WorkersShowWhereARankIsAndSinceWhen) {
  runs::Run run = two_ranks(2);
  LiveState live;
  live.rank = 1, live.world = 2, live.activity = Activity::kReduce, live.unit = 1, live.since_us = kBegin + 3590 * kSecond, live.step = 7;
  run.processes[1].live = live;
  const json row = view(run, "workers")["rows"][1];
  EXPECT_EQ(row["activity"], "reduce");
  EXPECT_EQ(row["unit"], "layers.0");
  EXPECT_EQ(row["for_us"], 10 * kSecond);
  EXPECT_EQ(row["step"], 7);
  run.processes[1].life = Life::kGone;
  EXPECT_FALSE(view(run, "workers")["rows"][1].contains("activity"));
}

TEST(Views, TablesComeInPages) {
  runs::Run run = two_ranks(1);
  for (int i = 0; i < 250; ++i)
    happens(run.processes[0], {{"t", kBegin + i}, {"kind", i % 10 == 0 ? "clock" : "error"}, {"message", std::to_string(i)}});
  const json first = view(run, "events");
  EXPECT_EQ(first["total"], 250);
  EXPECT_EQ(first["rows"].size(), 100u);
  EXPECT_EQ(first["rows"][0]["fields"]["message"], "249");  // the newest first
  const json last = view(run, "events", {{"offset", "200"}});
  EXPECT_EQ(last["rows"].size(), 50u);
  EXPECT_EQ(last["rows"][49]["fields"]["message"], "0");
  EXPECT_EQ(view(run, "events", {{"offset", "900"}})["rows"].size(), 0u);
  EXPECT_EQ(view(run, "events", {{"kind", "clock"}})["total"], 25);
  EXPECT_EQ(view(run, "events", {{"contains", "24"}, {"kind", "error"}})["total"], 12);
  EXPECT_EQ(first["kinds"]["clock"], 25);

  const json same = view(run, "events", {{"cursor", first["cursor"]}});
  EXPECT_TRUE(same["unchanged"].get<bool>());
  EXPECT_FALSE(same.contains("rows"));
  happens(run.processes[1], {{"t", kBegin}, {"kind", "end"}});
  EXPECT_EQ(view(run, "events", {{"cursor", first["cursor"]}})["total"], 251);
}

TEST(Views, AQueryOutOfBoundsIsRefusedByName) {
  const runs::Run run = two_ranks(1);
  for (const auto& [view, name, value] : std::vector<std::tuple<std::string, std::string, std::string>>{{"steps", "points", "5001"},
                                                                                                        {"steps", "points", "ten"},
                                                                                                        {"events", "limit", "0"},
                                                                                                        {"events", "offset", "-1"},
                                                                                                        {"step", "number", "1e3"}}) {
    const auto out = view_of(run, json::array(), {view, {{name, value}}}, kBegin);
    ASSERT_FALSE(out) << view << name;
    EXPECT_EQ(out.error().code(), Code::kInvalidArgument);
    EXPECT_NE(out.error().message().find(name), std::string::npos);
  }
  EXPECT_EQ(view_of(run, json::array(), {"secrets"}, kBegin).error().code(), Code::kNotFound);
}

TEST(Views, CheckpointsOfSeveralRanksAreOneRow) {
  runs::Run run = two_ranks(1);
  for (auto& p : run.processes)
    happens(p, {{"t", kBegin}, {"kind", "save"}, {"path", "/c/it's 1"}, {"step", 5}, {"bytes", 10}, {"us", p.rank() + 1}});
  happens(run.processes[0], {{"t", kBegin + 1}, {"kind", "save"}, {"path", "/c/2"}, {"step", 6}, {"bytes", 10}, {"us", 4}});
  run.checkpoint = "/c/2";
  const json out = view(run, "checkpoints");
  ASSERT_EQ(out["rows"].size(), 2u);
  EXPECT_EQ(out["rows"][0]["step"], 6);
  EXPECT_TRUE(out["rows"][0]["latest"].get<bool>());
  EXPECT_EQ(out["rows"][1]["ranks"], 2);
  EXPECT_EQ(out["rows"][1]["us"], 2);
  EXPECT_EQ(out["rows"][1]["verify"], "shoal checkpoint verify '/c/it'\\''s 1'");
}

TEST(Views, GoodputLeavesOutPausesSavesAndTheTimeBeforeTheFirstStep) {
  runs::Run run = two_ranks(0);
  for (std::uint64_t s = 1; s <= 10; ++s) {
    auto row = step_row(s, 0, kSecond, 0);
    row.end_us = kBegin + 10 * kSecond + static_cast<std::int64_t>(s) * kSecond;
    if (s == 5) row.in(Activity::kForward) = kSecond / 2, row.in(Activity::kSave) = kSecond / 2;
    run.processes[0].steps.rows.push_back(row);
  }
  happens(run.processes[0], {{"t", kBegin}, {"kind", "generation"}, {"pause_us", kSecond}});
  EXPECT_DOUBLE_EQ(view(run, "summary")["goodput"].get<double>(), (10 - 0.5 - 1) / 20);
}

TEST(Views, MarksStandAtTheStepInWhichSomethingHappened) {
  runs::Run run = two_ranks(10);
  happens(run.processes[1], {{"t", kBegin + 4 * kSecond + 5}, {"kind", "death"}, {"rank", 3}});
  happens(run.processes[1], {{"t", kBegin}, {"kind", "save"}, {"step", 7}, {"path", "/c"}});
  happens(run.processes[1], {{"t", kBegin}, {"kind", "begin"}});
  const json marks = view(run, "steps")["marks"];
  ASSERT_EQ(marks.size(), 2u);
  EXPECT_EQ(marks[0]["step"], 5);
  EXPECT_EQ(marks[1]["step"], 7);
}

TEST(Views, AVerdictIsMarkedWhereItsTroubleBegan) {
  const json verdicts = json::array({{{"since_step", 3}, {"sentence", "rank 1 is slow"}}, {{"sentence", "no step"}}});
  const auto out = view_of(two_ranks(10), verdicts, {"steps"}, kBegin);
  ASSERT_TRUE(out);
  ASSERT_EQ((*out)["marks"].size(), 1u);
  EXPECT_EQ((*out)["marks"][0]["step"], 3);
  EXPECT_EQ((*out)["marks"][0]["kind"], "verdict");
}

TEST(Views, AStepHasTheLanesOfAllRanksInOneTime) {
  runs::Run run = two_ranks(4);
  run.processes[0].spans.rows.push_back({4, 0, kBegin + 10, {{Activity::kForward, 1, 0, 100}, {Activity::kGather, 1, 0, 40}}});
  run.processes[1].spans.rows.push_back({4, 1, kBegin, {{Activity::kForward, 1, 0, 90}, {Activity::kGather, 1, 45, 5}}});
  run.processes[1].facts.units = {"", "other", "layers.0"};
  const json out = view(run, "step");
  EXPECT_EQ(out["step"], 4);
  EXPECT_EQ(out["begin"], kBegin);
  EXPECT_EQ(out["us"], 110);
  EXPECT_EQ(out["lanes"][0]["spans"][0], json({"fwd", 0, 10, 100}));
  EXPECT_EQ(out["units"], json({"layers.0", "other"}));
  EXPECT_EQ(view(run, "step", {{"limit", "1"}, {"offset", "1"}})["lanes"][0]["rank"], 1);
  EXPECT_EQ(view_of(run, json::array(), {"step", {{"number", "3"}}}, kBegin).error().code(), Code::kNotFound);
}

TEST(Views, ASnapshotHasEachDetailedStep) {
  runs::Run run = two_ranks(60);
  for (std::uint64_t s = 1; s <= 60; ++s) run.processes[0].spans.rows.push_back({s, 0, kBegin, {{Activity::kForward, 0, 0, 100}}});
  const json out = snapshot_of(run, json::array(), kBegin);
  EXPECT_EQ(out["steps"].size(), 40u);
  EXPECT_TRUE(out["steps"].contains("60") && out["steps"].contains("21"));
  EXPECT_EQ(out["views"]["steps"]["columns"]["step"].size(), 60u);
}

TEST(Views, HostileTextStaysTextAndNumbersStayBounded) {
  runs::Run run = two_ranks(1);
  auto& p = run.processes[0];
  p.facts.host = "<script>\xff\x1b[2J";
  happens(p, {{"t", kBegin}, {"kind", "save"}, {"path", 17}, {"step", 1e300}, {"us", "x"}, {"bytes", -5}});
  happens(p, {{"t", kBegin}, {"kind", "generation"}, {"pause_us", "long"}, {"phases", json::array({1})}, {"world", json::object()}});
  happens(p, {{"t", kBegin}, {"kind", "verdict"}, {"sentence", json::array()}});
  happens(p, {{"t", kBegin}, {"kind", "\xff\xfe"}, {"x", "\xff"}});
  p.metrics.rows.push_back({kBegin, 1, {{"\xff</script>", 1.0}}});
  for (const auto name : kViews) {
    const std::string text = view(run, std::string(name)).dump(-1, ' ', false, json::error_handler_t::replace);
    EXPECT_TRUE(json::accept(text)) << name;
  }
}

std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t, Activity>> path(const std::vector<Lane>& lanes) {
  std::vector<std::tuple<std::size_t, std::int64_t, std::int64_t, Activity>> out;
  for (const auto& part : critical_path(lanes)) out.emplace_back(part.lane, part.from_us, part.length_us, part.activity);
  return out;
}

TEST(CriticalPath, AWaitHandsItToTheRankThatCameLast) {
  // Rank 0 waits from 10 to 35 for the gradients of unit 2, to which rank 1 comes at 30.
  const std::vector<Lane> lanes = {{{{Activity::kBackward, 2, 0, 35}, {Activity::kReduce, 2, 10, 25}, {Activity::kOptimizer, -1, 35, 10}}},
                                   {{{Activity::kBackward, 2, 0, 35}, {Activity::kReduce, 2, 30, 5}, {Activity::kOptimizer, -1, 35, 8}}}};
  EXPECT_EQ(path(lanes),
            (decltype(path(lanes)){{1, 0, 30, Activity::kBackward}, {0, 30, 5, Activity::kReduce}, {0, 35, 10, Activity::kOptimizer}}));
}

TEST(CriticalPath, AWaitWithoutALaterRankIsTheExchangeItself) {
  const std::vector<Lane> lanes = {{{{Activity::kForward, 0, 0, 20}, {Activity::kGather, 0, 5, 6}}}};
  EXPECT_EQ(path(lanes),
            (decltype(path(lanes)){{0, 0, 5, Activity::kForward}, {0, 5, 6, Activity::kGather}, {0, 11, 9, Activity::kForward}}));
  EXPECT_TRUE(critical_path({}).empty());
  EXPECT_TRUE(critical_path({Lane{}, Lane{}}).empty());
}

TEST(CriticalPath, TheRootsOwnForwardBetweenItsUnitsCounts) {
  const std::vector<Lane> lanes = {
      {{{Activity::kForward, 1, 2, 10}, {Activity::kForward, 2, 80, 10}, {Activity::kGather, 2, 80, 4}, {Activity::kForward, 0, 0, 100}}}};
  const auto found = path(lanes);
  EXPECT_EQ(found.size(), 6u);
  EXPECT_EQ(found.at(2), std::tuple(std::size_t{0}, std::int64_t{12}, std::int64_t{68}, Activity::kForward));
  std::int64_t length = 0;
  for (const auto& part : found) length += std::get<2>(part);
  EXPECT_EQ(length, 100);
}

TEST(CriticalPath, SpansThatOverlapInAnyWayEndIt) {
  std::vector<Lane> lanes(3);
  std::uint64_t seed = 7;
  const auto next = [&seed](std::uint64_t most) {
    return static_cast<std::int64_t>((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % static_cast<std::int64_t>(most);
  };
  for (auto& lane : lanes) {
    for (int i = 0; i < 200; ++i)
      lane.spans.push_back({static_cast<Activity>(next(9)), static_cast<int>(next(4)), next(1000) - 100, next(100) - 10});
  }
  EXPECT_LE(critical_path(lanes).size(), 4000u);
}

TEST(EventText, NamesWhatHappened) {
  const auto text = [](json fields) { return event_text({0, fields["kind"], fields}); };
  EXPECT_EQ(text({{"kind", "death"}, {"rank", 3}, {"host", "b"}, {"cause", "SIGKILL"}}), "rank 3 on host b died: SIGKILL");
  EXPECT_EQ(text({{"kind", "generation"},
                  {"generation", 2},
                  {"world", 3},
                  {"cause", "dies"},
                  {"pause_us", 295200},
                  {"bytes", 3 << 20},
                  {"steps_lost", 0}}),
            "generation 2 of 3 workers: a worker died; the training paused for 295 ms, moved 3.1 MB, and lost 0 steps");
  EXPECT_EQ(text({{"kind", "clock"}, {"us", -3600000000}}), "the time of day jumped by -60 min");
  EXPECT_EQ(text({{"kind", "new_kind"}, {"t", 1}, {"x", 2}, {"y", "z"}}), "x 2, y z");
  EXPECT_EQ(text({{"kind", "end"}, {"code", nullptr}, {"cause", ""}}), "the process ended");
  EXPECT_EQ(text({{"kind", "death"}, {"rank", nullptr}, {"worker", 4}}), "worker 4, which had not joined yet, died");
  EXPECT_EQ(text({{"kind", "generation"}, {"generation", 1}, {"world", 2}, {"cause", "begins"}}), "generation 1 begins with 2 workers");
  EXPECT_EQ(text({{"kind", "finite"}, {"what", "loss"}, {"step", 9}}), "loss is finite again in step 9");
}

}  // namespace
}  // namespace shoal::scheduler::runs
