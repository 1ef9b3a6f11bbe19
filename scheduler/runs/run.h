// The content of a run's folder, as values. docs/runs.md has the meaning of the rows.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/telemetry/rows.h"

namespace shoal::scheduler::runs {

// Rows in the order of their times. The reader bounds their number: in the older half it merges neighbours, or drops every second row
// if two rows have no sum.
template <class Row>
struct Series {
  std::deque<Row> rows;
  // How many rows have been appended at the end so far. So the newest row has this number, and a client that has seen N wants the last
  // `appended - N` rows.
  std::uint64_t appended = 0;
};

struct Event {
  std::int64_t t_us = 0;
  std::string kind;
  nlohmann::json fields;  // the whole line, an object
};
// A field of an event; 0 or "" if it is absent, or something else.
std::int64_t number_in(const Event& event, const char* key);
std::string text_in(const Event& event, const char* key);

// The content of process.json.
struct ProcessFacts {
  std::string role;  // "rank" or "driver"; "" while the file is not there
  int rank = -1, world = 1, local_rank = 0;
  std::string host;
  std::int64_t pid = 0, start_us = 0;
  std::vector<std::string> units, argv;
  std::string device;
};

// A copy of the live page.
struct LiveState {
  std::int64_t pid = 0, start_us = 0, beat_us = 0, since_us = 0;
  std::uint64_t step = 0;  // steps that have ended
  int rank = 0, world = 1, generation = 1;
  runtime::Activity activity = runtime::Activity::kElsewhere;
  int unit = -1, thread = 0;
};

enum class Life {
  kUnknown,  // neither a live page nor an end
  kAlive,
  kSilent,  // on another host, or stopped: it has written nothing for kSilentAfterUs
  kGone,    // without an end: its process is gone
  kEnded,   // with an event `end`
};
const char* life_text(Life life);  // "alive", ...

// A process of another host counts as silent after this time without a beat. It beats four times a second; a network's file system shows
// a write up to 3 s later.
inline constexpr std::int64_t kSilentAfterUs = 4'000'000;
// A process of this host counts as gone if the kernel does not know it, and its page shows no beat for two beats' time. By the kernel
// alone, a living process in another PID namespace would count as gone.
inline constexpr std::int64_t kGoneAfterUs = 600'000;
// A silent process is given up after this time.
inline constexpr std::int64_t kLostAfterUs = 60'000'000;

struct Process {
  std::string folder;  // its name below processes/
  ProcessFacts facts;
  std::optional<LiveState> live;
  Life life = Life::kUnknown;
  bool on_this_host = false;
  std::int64_t quiet_us = 0;  // since the last beat, by this host's clock
  int held_polls = 0;         // polls in a row, the last one included, that saw the live page at the same activity since the same time
  Series<runtime::StepRow> steps;
  Series<runtime::SpansRow> spans;
  Series<runtime::SampleRow> samples;
  Series<runtime::MetricsRow> metrics;
  Series<Event> events;
  // Grows when the reader has read the process's files anew, so that rows' numbers begin again.
  std::uint64_t readings = 1;
  std::uint64_t skipped_lines = 0;  // lines that were too long, or are no row

  // The rank at present: elastic trainings change it. -1: a driver.
  int rank() const;
  std::string unit_name(int unit) const;  // "" for -1 and numbers without a name
};

// The content of exit.json.
struct RunEnd {
  int exit_code = 0;
  std::string cause;
  std::optional<int> rank;
  bool retryable = false;
  std::string checkpoint;
  std::int64_t unix_s = 0;
};

enum class RunState { kRunning, kEnded, kLost };  // kLost: no process lives, and none has written an end
const char* state_text(RunState state);           // "running", ...

struct Run {
  std::string name, path;
  RunState state = RunState::kLost;
  std::optional<RunEnd> end;
  std::string checkpoint;              // the content of the file `checkpoint`
  std::vector<Process> processes;      // ordered by folder
  std::size_t processes_left_out = 0;  // processes beyond the reader's bound
  // Bytes of the folder's file system, at the last poll. A total of 0: not known.
  std::int64_t disk_free = 0, disk_total = 0;
};

}  // namespace shoal::scheduler::runs
