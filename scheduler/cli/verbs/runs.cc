// ls, show, diff, top: runs, as their folders have them (docs/runs.md).
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/loop/clock.h"
#include "runtime/loop/loop.h"
#include "scheduler/cli/command_line.h"
#include "scheduler/cli/output.h"
#include "scheduler/cli/runs/run_choice.h"
#include "scheduler/cli/runs/run_text.h"
#include "scheduler/cli/verbs/verbs.h"
#include "scheduler/runs/run_reader.h"

namespace shoal::scheduler::cli {

using nlohmann::json;

namespace {

constexpr std::size_t kRunListTail = 128 << 10;  // from the end of each file: some hundred steps suffice for a verdict
constexpr std::size_t kMostRankRows = 64;        // in a table; --json has all
constexpr auto kBetweenRunPolls = std::chrono::milliseconds(300);

struct RunsOptions {
  std::string run, other, folder;
  std::size_t limit = 20, events = 10;
  bool once = false;
  double interval_s = 1;
};

// The time of day, and waits without a cluster.
class Moments {
 public:
  std::int64_t now_us() const { return clock_->unix_millis() * 1000; }
  void wait(std::chrono::nanoseconds duration) {
    const auto end = clock_->now() + duration;
    for (auto now = clock_->now(); now < end; now = clock_->now()) loop_.run_one(end - now);
  }

 private:
  runtime::Loop loop_;
  std::unique_ptr<runtime::Clock> clock_ = runtime::make_real_clock(loop_);
};

Result<runs::RunReader> open_run(const Common& common, const std::string& name, runs::ReaderOptions options = {}) {
  SHOAL_TRY(const std::string path, find_run(name, runs::list_runs(run_roots(common.target.root))));
  return runs::RunReader::open(path, std::move(options));
}

// Reads the run. A second look shows whether a process that seems quiet beats, and what holds for longer than a moment.
void read_run(runs::RunReader& reader, Moments& moments) {
  reader.poll(moments.now_us());
  if (reader.run().state != runs::RunState::kRunning) return;
  moments.wait(kBetweenRunPolls);
  reader.poll(moments.now_us());
}

int ls_runs(const Common& common, const RunsOptions& options) {
  Moments moments;
  std::error_code gone;
  if (!options.folder.empty() && !std::filesystem::is_directory(options.folder, gone))
    return failed(common, not_found("there is no folder " + options.folder).with_hint("`shoal ls` alone lists the runs of this user"));
  const auto roots = options.folder.empty() ? run_roots(common.target.root) : std::vector{options.folder, options.folder + "/shoal-run"};
  const auto listed = runs::list_runs(roots);
  const auto shown = options.limit == 0 ? listed.size() : std::min(options.limit, listed.size());
  std::vector<runs::RunReader> readers;
  bool any_runs = false;
  for (std::size_t i = 0; i < shown; ++i) {
    auto reader = runs::RunReader::open(listed[i].path, {.tail_bytes = kRunListTail});
    if (!reader) continue;  // removed meanwhile
    reader->poll(moments.now_us());
    any_runs = any_runs || reader->run().state == runs::RunState::kRunning;
    readers.push_back(*std::move(reader));
  }
  if (any_runs) moments.wait(kBetweenRunPolls);
  json all = json::array();
  std::vector<std::vector<std::string>> rows;
  for (auto& reader : readers) {
    if (reader.run().state == runs::RunState::kRunning) reader.poll(moments.now_us());
    const auto& run = reader.run();
    const auto d = diagnosed(run, moments.now_us());
    if (common.json) {
      auto row = run_json(run, d);
      row.erase("ranks");
      row["num_ranks"] = d.summary.ranks.size();
      all.push_back(std::move(row));
    } else {
      rows.push_back({run.name, runs::state_text(run.state), std::to_string(d.summary.ranks.size()), std::to_string(d.summary.step),
                      local_time_text(d.summary.began_us),
                      local_time_text(std::max(d.summary.newest_us, run.end ? run.end->unix_s * 1'000'000 : 0)), d.verdicts[0].sentence});
    }
  }
  if (common.json) {
    print_json({{"schema", "shoal.runs/1"}, {"runs", std::move(all)}, {"more", listed.size() - shown}});
    return kOk;
  }
  if (rows.empty()) {
    print(stderr, "shoal: no runs in {} and {} (docs/runs.md: a run has a folder where it is recorded)\n", roots[0], roots[1]);
    return kOk;
  }
  print_table({"RUN", "STATE", "RANKS", "STEP", "BEGAN", "NEWEST", "VERDICT"}, rows);
  if (listed.size() > shown) print(stderr, "shoal: {} runs more; --limit N shows N, --limit 0 all\n", listed.size() - shown);
  return kOk;
}

void print_run(const runs::Run& run, const Diagnosis& d) {
  print(stdout, "{}\n", headline(run, d));
  print(stdout, "{}", Lines{verdict_lines(d.verdicts, 5)});
  if (d.summary.ranks.empty()) return;
  const auto ranks = rank_table(d.summary, kMostRankRows);
  print(stdout, "\n");
  print_table(ranks.header, ranks.rows);
  if (d.summary.ranks.size() > ranks.rows.size())
    print(stdout, "and {} ranks that wait more\n", d.summary.ranks.size() - ranks.rows.size());
}

int show_run(const Common& common, const RunsOptions& options) {
  auto reader = open_run(common, options.run);
  if (!reader) return failed(common, reader.error());
  Moments moments;
  read_run(*reader, moments);
  const auto& run = reader->run();
  const auto d = diagnosed(run, moments.now_us());
  if (common.json) {
    auto out = run_json(run, d);
    out["schema"] = "shoal.run/1";
    print_json(out);
    return kOk;
  }
  print_run(run, d);
  print(stdout, "\nfolder      {}\nbegan       {}\nnewest      {}\n", run.path, local_time_text(d.summary.began_us),
        local_time_text(d.summary.newest_us));
  if (run.end) print(stdout, "exit code   {}\n", run.end->exit_code);
  if (!d.summary.checkpoint.empty()) print(stdout, "checkpoint  {}\n", d.summary.checkpoint);
  for (const auto& [name, value] : d.summary.metrics) print(stdout, "{:<11} {:.6g}\n", name, value);
  const auto events = event_table(run, options.events);
  if (events.rows.empty()) return kOk;
  print(stdout, "\n");
  print_table(events.header, events.rows);
  return kOk;
}

int diff_runs(const Common& common, const RunsOptions& options) {
  auto before = open_run(common, options.run);
  if (!before) return failed(common, before.error());
  auto after = open_run(common, options.other);
  if (!after) return failed(common, after.error());
  Moments moments;
  before->poll(moments.now_us());
  after->poll(moments.now_us());
  const auto d = runs::difference(before->run(), after->run());
  if (d.sentence.empty())
    return failed(common, invalid_argument("one of the runs has too few steps to compare: 8 behind its first 5 are needed"));
  if (common.json) {
    auto out = runs::to_json(d);
    out["schema"] = "shoal.diff/1";
    out["before"] = before->run().path;
    out["after"] = after->run().path;
    print_json(out);
    return kOk;
  }
  print(stdout, "{} after {}: {}\n\n", after->run().name, before->run().name, d.sentence);
  auto rows = d.activities;
  rows.insert(rows.begin(), d.step);
  const auto places = difference_table(rows);
  print_table(places.header, places.rows);
  if (d.units.empty()) return kOk;
  const auto units = difference_table(d.units);
  print(stdout, "\nunits that differ\n");
  print_table(units.header, units.rows);
  return kOk;
}

volatile std::sig_atomic_t top_interrupted = 0;

int top_run(const Common& common, const RunsOptions& options) {
  auto reader = open_run(common, options.run);
  if (!reader) return failed(common, reader.error());
  Moments moments;
  read_run(*reader, moments);
  const bool live = !options.once && !common.json && isatty(STDOUT_FILENO) == 1;
  if (live) {
    const auto note = [](int) { top_interrupted = 1; };
    std::signal(SIGINT, note);
    std::signal(SIGTERM, note);
    print_bytes(stdout, "\x1b[2J");
  }
  while (true) {
    const auto& run = reader->run();
    const auto d = diagnosed(run, moments.now_us());
    if (common.json) {
      auto out = run_json(run, d);
      out["schema"] = "shoal.run/1";
      print_json(out);
      return kOk;
    }
    if (live) print_bytes(stdout, "\x1b[H\x1b[J");
    print_run(run, d);
    std::fflush(stdout);
    if (!live || run.state != runs::RunState::kRunning) return kOk;
    const auto interval = std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(options.interval_s, 0.1, 60.0) * 1000));
    for (auto waited = std::chrono::milliseconds(0); waited < interval; waited += std::chrono::milliseconds(100)) {
      if (top_interrupted != 0) return kOk;
      moments.wait(std::chrono::milliseconds(100));
    }
    reader->poll(moments.now_us());
  }
}

constexpr const char* kRunName = "Name of a run (see `shoal ls`), or its folder";
constexpr const char* kRunOrNewest = "Name of a run (see `shoal ls`), or its folder; by default the newest run";

}  // namespace

void add_ls(CommandLine& line) {
  auto& options = line.own<RunsOptions>();
  auto* verb = line.add_verb_without_cluster("ls", "List runs, with the verdict on each: those in ./shoal-run and $SHOAL_HOME/runs");
  verb->add_option("folder", options.folder, "List the runs in this folder, and in its shoal-run, instead")->check(not_empty());
  verb->add_option("--limit", options.limit, "Maximum number of runs, the newest first; 0 shows all")->capture_default_str();
  line.on_run(verb, [&options](const Common& common) { return ls_runs(common, options); });
}

void add_show(CommandLine& line) {
  auto& options = line.own<RunsOptions>();
  auto* verb = line.add_verb_without_cluster("show", "Show a run: what slows or stopped it, its ranks and its last events");
  verb->add_option("run", options.run, kRunOrNewest)->check(not_empty());
  verb->add_option("--events", options.events, "Maximum number of events, the newest last")->capture_default_str();
  line.on_run(verb, [&options](const Common& common) { return show_run(common, options); });
}

void add_diff(CommandLine& line) {
  auto& options = line.own<RunsOptions>();
  auto* verb =
      line.add_verb_without_cluster("diff", "Compare the steps of two runs: what got slower, by activity and by unit of the model");
  verb->add_option("before", options.run, kRunName)->required()->check(not_empty());
  verb->add_option("after", options.other, kRunName)->required()->check(not_empty());
  line.on_run(verb, [&options](const Common& common) { return diff_runs(common, options); });
}

void add_top(CommandLine& line) {
  auto& options = line.own<RunsOptions>();
  auto* verb = line.add_verb_without_cluster("top", "Show what the ranks of a run do now, until the run or Ctrl-C ends it");
  verb->add_option("run", options.run, kRunOrNewest)->check(not_empty());
  verb->add_flag("--once", options.once, "Print once; so it does where the output is no terminal");
  verb->add_option("--interval", options.interval_s, "Seconds between two tables")->capture_default_str();
  line.on_run(verb, [&options](const Common& common) { return top_run(common, options); });
}

}  // namespace shoal::scheduler::cli
