// Reads a run's folder (docs/runs.md) while its processes write it, and after their end.
//
// A reader trusts nothing there: it follows no links, waits for no FIFO, and bounds what it reads and keeps. Files may grow, end and
// disappear at any time.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "runtime/core/fd.h"
#include "runtime/core/result.h"
#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

struct ReaderOptions {
  std::string host = {};  // this host's name; "": gethostname()
  // True if a process of this host has that pid and began before `start_us`. Empty: /proc decides.
  std::function<bool(std::int64_t pid, std::int64_t start_us)> lives = {};

  std::set<std::string> left_out = {};  // folders below processes/, such as those of an earlier run

  std::size_t most_processes = 20'000;
  std::size_t most_files = 256;                // per process
  std::size_t most_line_bytes = 1 << 20;       // a longer line is skipped
  std::size_t tail_bytes = 0;                  // above 0: only so much of the end of each kind's newest file, for lists of many runs
  std::size_t most_file_bytes = 16 << 20;      // the rest of a larger file is not read
  std::size_t most_rows = 20'000;              // per kind and process
  std::size_t most_rows_together = 1'000'000;  // per kind; shared by the processes, each of which has at least 100
  std::size_t most_detailed = 300;             // rows of spans, per process
  std::size_t most_spans_together = 2'000'000;
};

// True if /proc has a process with this pid that began before start_us, a time of day.
bool process_lives(std::int64_t pid, std::int64_t start_us);

class RunReader {
 public:
  // Opens the folder and reads nothing yet. NotFound without the folder, InvalidArgument if it is no run's.
  static Result<RunReader> open(const std::string& folder, ReaderOptions options = {});
  RunReader(RunReader&&) noexcept;
  RunReader& operator=(RunReader&&) noexcept;
  ~RunReader();

  // Reads what was appended since the last call. `now_us`: the time of day. `steady_us`: a time that does not jump, to measure how long a
  // process has been quiet. True if anything but live pages has changed.
  bool poll(std::int64_t now_us, std::int64_t steady_us);
  bool poll(std::int64_t now_us) { return poll(now_us, now_us); }
  const Run& run() const { return run_; }

 private:
  struct Followed;  // a process, and how far its files are read

  RunReader(Run run, Fd folder, ReaderOptions options);
  bool read_end();
  bool read_process(const Fd& all, Process& process, Followed& followed, std::int64_t now_us);
  void judge_life(Process& process, Followed& followed, std::int64_t now_us, std::int64_t steady_us) const;
  void judge_state();
  std::size_t share_of(std::size_t each, std::size_t together) const;

  Run run_;
  Fd folder_;
  ReaderOptions options_;
  std::map<std::string, std::unique_ptr<Followed>> followed_;  // by the process's folder
};

// True if the folder has what a run leaves: `processes`, or an exit record.
bool is_run_folder(const std::string& folder);

}  // namespace shoal::scheduler::runs
