#include "scheduler/runs/run_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <utility>

#include "runtime/process/process.h"
#include "runtime/wire/nesting.h"
#include "scheduler/runs/files.h"

namespace shoal::scheduler::runs {

using nlohmann::json;
using runtime::LivePage;
using runtime::MetricsRow;
using runtime::SampleRow;
using runtime::SpansRow;
using runtime::StepRow;

namespace {

constexpr std::int64_t kFutureUs = 10'000'000;

// Reading JSON recurses once per level, so a deeply nested text would overflow the stack.
json parsed(std::string_view text) { return nesting(text) > kMaxNesting ? json() : json::parse(text, nullptr, false); }

constexpr std::size_t kMostRecordBytes = 4 << 20;   // process.json: `units` may be long
constexpr std::size_t kMostEventBytes = 256 << 10;  // bytes of a line
constexpr std::size_t kMostEventFile = 5 << 20;     // bytes; processes stop to write events at 4 MB
constexpr std::size_t kMostEvents = 5'000;
constexpr std::size_t kMostNameBytes = 200;
constexpr std::size_t kMostValues = 256;  // per metrics row
constexpr std::size_t kLeastRows = 100;
constexpr int kMostReadings = 3;  // readings in one poll, each after files were merged during the one before
// A listing of a folder that was changed this long ago or earlier is complete: clocks of file systems are coarse.
constexpr std::int64_t kSettledUs = 2'000'000;

// The largest values that are accepted. Sums of such values do not overflow.
constexpr std::int64_t kMostDuration = 10'000'000'000'000;   // 115 days
constexpr std::int64_t kMostTime = 4'000'000'000'000'000;    // the year 2096
constexpr std::int64_t kMostAmount = 1'000'000'000'000'000;  // 1 PB
constexpr std::int64_t kMostRank = 10'000'000;

bool within(std::int64_t value, std::int64_t most) { return value >= 0 && value <= most; }

bool sound(const StepRow& r) {
  const bool times = std::all_of(r.at.begin(), r.at.end(), [](std::int64_t us) { return within(us, kMostDuration); });
  return times && within(r.end_us, kMostTime) && within(r.total_us, kMostDuration) && within(r.cpu_us, kMostDuration) &&
         within(r.longest_us, kMostDuration) && within(r.steps, kMostRank) && r.step <= static_cast<std::uint64_t>(kMostAmount) &&
         within(r.rank, kMostRank) && within(r.world, kMostRank) && within(r.generation, kMostRank);
}
bool sound(const SpansRow& r) {
  return within(r.begin_us, kMostTime) && within(r.rank, kMostRank) && r.step <= static_cast<std::uint64_t>(kMostAmount) &&
         std::all_of(r.spans.begin(), r.spans.end(), [](const runtime::Span& s) {
           return within(s.from_us, kMostDuration) && within(s.length_us, kMostDuration) && s.unit >= -1 && s.unit < kMostRank;
         });
}
bool sound(const SampleRow& r) {
  for (const auto amount : {r.rss, r.host_free, r.host_total, r.disk_free, r.major_faults, r.cpu_us, r.runqueue_us})
    if (!within(amount, kMostAmount)) return false;
  return within(r.t_us, kMostTime) && r.step <= static_cast<std::uint64_t>(kMostAmount);
}
bool sound(const MetricsRow& r) {
  return within(r.t_us, kMostTime) && r.step <= static_cast<std::uint64_t>(kMostAmount) && r.values.size() <= kMostValues &&
         std::all_of(r.values.begin(), r.values.end(), [](const auto& v) { return v.first.size() <= kMostNameBytes; });
}

// True if a coarse row ends within or behind the finer row that follows it, and so contains that row once more.
bool repeats(const StepRow& coarse, const StepRow& fine) { return coarse.step >= fine.step && coarse.end_us > fine.end_us - fine.total_us; }
bool repeats(const SampleRow& coarse, const SampleRow& fine) { return coarse.t_us >= fine.t_us; }
bool repeats(const MetricsRow& coarse, const MetricsRow& fine) { return coarse.step >= fine.step && coarse.t_us >= fine.t_us; }

void join(StepRow& row, const StepRow& later) { row.add(later); }
void join(SampleRow& row, const SampleRow& later) {
  const auto samples = row.samples + later.samples;
  row = later;
  row.samples = samples;
}
void join(MetricsRow& row, const MetricsRow& later) { row = later; }

// Bounds a series: joins neighbours in its older half, or drops every second row there.
template <class Row>
void bound(Series<Row>& series, std::size_t most) {
  auto& rows = series.rows;
  if (rows.size() <= most) return;
  const std::size_t older = rows.size() / 2 / 2 * 2;
  std::size_t to = 0;
  for (std::size_t from = 0; from < older; from += 2) {
    Row row = std::move(rows[from]);
    join(row, rows[from + 1]);
    rows[to++] = std::move(row);
  }
  rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(to), rows.begin() + static_cast<std::ptrdiff_t>(older));
}

// Appends rows of one kind, the coarse ones first.
template <class Row>
class Appender {
 public:
  Appender(Series<Row>& series, std::size_t most) : series_(series), most_(most) {}
  void append(int level, Row row) {
    if (level != level_) {
      for (auto& rows = series_.rows; level < level_ && !rows.empty() && repeats(rows.back(), row); --series_.appended) rows.pop_back();
      level_ = level;
    }
    series_.rows.push_back(std::move(row));
    ++series_.appended;
    bound(series_, most_);
  }

 private:
  Series<Row>& series_;
  std::size_t most_;
  int level_ = 0;
};

template <class T>
T number(const json& from, const char* key, T otherwise, std::int64_t most) {
  const auto at = from.find(key);
  if (at == from.end() || !at->is_number_integer()) return otherwise;
  const auto value = at->template get<std::int64_t>();
  return value < -1 || value > most ? otherwise : static_cast<T>(value);
}
std::string text(const json& from, const char* key) {
  const auto at = from.find(key);
  return at == from.end() || !at->is_string() ? "" : at->get<std::string>().substr(0, 4096);
}
std::vector<std::string> texts(const json& from, const char* key) {
  std::vector<std::string> out;
  const auto at = from.find(key);
  if (at == from.end() || !at->is_array()) return out;
  for (const auto& item : *at) out.push_back(item.is_string() ? item.get<std::string>() : "");
  return out;
}

std::optional<ProcessFacts> facts_of(const std::string& content) {
  const json in = parsed(content);
  if (!in.is_object()) return {};
  ProcessFacts out;
  out.role = text(in, "role"), out.host = text(in, "host"), out.device = text(in, "device");
  out.rank = number(in, "rank", -1, kMostRank), out.world = number(in, "world", 1, kMostRank);
  out.local_rank = number(in, "local_rank", 0, kMostRank);
  out.pid = number<std::int64_t>(in, "pid", 0, 1LL << 31), out.start_us = number<std::int64_t>(in, "start", 0, kMostTime);
  out.units = texts(in, "units"), out.argv = texts(in, "argv");
  if (out.role.empty()) out.role = "rank";
  return out;
}

std::optional<Event> event_of(std::string_view line) {
  if (line.size() > kMostEventBytes) return {};
  json in = parsed(line);
  if (!in.is_object()) return {};
  Event out{number<std::int64_t>(in, "t", 0, kMostTime), text(in, "kind"), {}};
  if (out.kind.empty()) return {};
  out.fields = std::move(in);
  return out;
}

std::optional<LiveState> live_of(const Fd& folder) {
  const Fd file = open_file(folder, "live");
  LivePage page;  // not mapped: a file that shrinks would end this process
  if (!file || pread(file.get(), &page, sizeof page, 0) != sizeof page || page.magic != LivePage::kMagic) return {};
  LiveState out;
  out.pid = page.pid, out.start_us = page.start_us, out.beat_us = page.beat_us, out.since_us = page.since_us;
  out.step = page.step, out.unit = page.unit, out.thread = page.thread;
  if (!within(out.beat_us, kMostTime) || !within(out.since_us, kMostTime) || !within(out.start_us, kMostTime) ||
      !within(page.rank, kMostRank) || !within(page.world, kMostRank) || !within(page.generation, kMostRank) ||
      out.step > static_cast<std::uint64_t>(kMostAmount))
    return {};
  out.rank = static_cast<int>(page.rank), out.world = static_cast<int>(page.world), out.generation = static_cast<int>(page.generation);
  out.activity = page.activity > static_cast<std::uint32_t>(runtime::Activity::kEnded) ? runtime::Activity::kElsewhere
                                                                                       : static_cast<runtime::Activity>(page.activity);
  return out;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::int64_t change_time(const Fd& folder) {
  struct stat seen {};
  return fstat(folder.get(), &seen) != 0 ? 0 : seen.st_mtim.tv_sec * std::int64_t{1'000'000} + seen.st_mtim.tv_nsec / 1000;
}

}  // namespace

bool process_lives(std::int64_t pid, std::int64_t start_us) {
  if (pid <= 0 || pid > (1LL << 31)) return false;
  const auto ticks = runtime::start_time(static_cast<pid_t>(pid));
  if (ticks == 0) return false;
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("btime ")) continue;
    const std::int64_t booted_us = std::strtoll(line.c_str() + 6, nullptr, 10) * 1'000'000;
    const auto began_us = booted_us + static_cast<std::int64_t>(ticks) * 1'000'000 / sysconf(_SC_CLK_TCK);
    return start_us == 0 || began_us <= start_us + 3'000'000;  // btime has whole seconds
  }
  return true;
}

struct RunReader::Followed {
  explicit Followed(const ReaderOptions& o)
      : steps("steps", true, {o.most_line_bytes, o.most_file_bytes, o.tail_bytes}),
        spans("spans", false, {o.most_line_bytes, o.most_file_bytes, o.tail_bytes, o.most_detailed}),
        samples("samples", true, {o.most_line_bytes, o.most_file_bytes, o.tail_bytes}),
        metrics("metrics", true, {o.most_line_bytes, o.most_file_bytes, o.tail_bytes}),
        events("events", false, {o.most_line_bytes, std::min(o.most_file_bytes, kMostEventFile), o.tail_bytes}) {}

  LevelFiles steps, spans, samples, metrics, events;
  ino_t facts_inode = 0;  // the inode of the process.json that was read last
  std::vector<LevelFile> files;
  std::int64_t listed_change_us = -1;  // the folder's time of change at a listing that is complete
  std::int64_t beat_us = 0;            // the last beat that a poll has seen
  std::int64_t changed_us = 0;         // by this host's steady time: the last poll that saw another beat; 0: none yet
  std::int64_t written_us = 0;         // the time of change of the file `live`
};

RunReader::RunReader(Run run, Fd folder, ReaderOptions options)
    : run_(std::move(run)), folder_(std::move(folder)), options_(std::move(options)) {}
RunReader::RunReader(RunReader&&) noexcept = default;
RunReader& RunReader::operator=(RunReader&&) noexcept = default;
RunReader::~RunReader() = default;

Result<RunReader> RunReader::open(const std::string& folder, ReaderOptions options) {
  std::error_code error;
  auto whole = std::filesystem::absolute(folder, error).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();
  Fd opened(::open(whole.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return fail(from_errno(errno, whole.string()));
  if (!is_run_folder(whole))
    return fail(invalid_argument(whole.string() + " is no run's folder: it has neither processes/ nor exit.json")
                    .with_hint("`shoal ls` lists the runs"));
  if (options.host.empty()) options.host = host_name();
  if (!options.lives) options.lives = process_lives;
  Run run;
  run.name = whole.filename();
  run.path = whole;
  return RunReader(std::move(run), std::move(opened), std::move(options));
}

std::size_t RunReader::share_of(std::size_t each, std::size_t together) const {
  return std::clamp(together / std::max<std::size_t>(run_.processes.size(), 1), std::min(kLeastRows, each), each);
}

bool RunReader::poll(std::int64_t now_us, std::int64_t steady_us) {
  bool changed = read_end();
  struct statvfs disk {};
  if (fstatvfs(folder_.get(), &disk) == 0) {
    run_.disk_free = static_cast<std::int64_t>(disk.f_bavail * disk.f_frsize);
    run_.disk_total = static_cast<std::int64_t>(disk.f_blocks * disk.f_frsize);
  }
  const Fd all = open_folder(folder_, "processes");
  if (all) {
    const auto names = names_in(all, options_.most_processes, &run_.processes_left_out);
    for (const auto& name : names) {
      if (options_.left_out.contains(name)) continue;
      if (followed_.contains(name) || !open_folder(all, name.c_str())) continue;
      followed_[name] = std::make_unique<Followed>(options_);
      const auto at = std::lower_bound(run_.processes.begin(), run_.processes.end(), name,
                                       [](const Process& p, const std::string& folder) { return p.folder < folder; });
      run_.processes.emplace(at)->folder = name;
      changed = true;
    }
    for (auto& process : run_.processes) changed = read_process(all, process, *followed_[process.folder], now_us) || changed;
  }
  for (auto& process : run_.processes) judge_life(process, *followed_[process.folder], now_us, steady_us);
  judge_state();
  return changed;
}

bool RunReader::read_end() {
  const auto content = read_file(folder_, "exit.json", 1 << 20);
  const json in = content ? parsed(*content) : json();
  const bool had = run_.end.has_value();
  run_.end.reset();
  if (in.is_object()) {
    RunEnd end;
    end.exit_code = number(in, "exit_code", 1, 1 << 16);
    end.cause = text(in, "cause");
    if (in.contains("rank") && in["rank"].is_number_integer()) end.rank = number(in, "rank", 0, kMostRank);
    end.retryable = in.contains("retryable") && in["retryable"].is_boolean() && in["retryable"].get<bool>();
    end.checkpoint = text(in, "checkpoint");
    end.unix_s = number<std::int64_t>(in, "unix_s", 0, kMostTime / 1'000'000);
    run_.end = std::move(end);
  }
  run_.checkpoint = read_file(folder_, "checkpoint", 4096).value_or("");
  while (run_.checkpoint.ends_with('\n')) run_.checkpoint.pop_back();
  return had != run_.end.has_value();
}

bool RunReader::read_process(const Fd& all, Process& process, Followed& followed, std::int64_t now_us) {
  const Fd folder = open_folder(all, process.folder.c_str());
  if (!folder) return false;
  struct stat seen {};
  // A process replaces the file when it knows its units.
  if (fstatat(folder.get(), "process.json", &seen, AT_SYMLINK_NOFOLLOW) == 0 && seen.st_ino != followed.facts_inode) {
    if (const auto content = read_file(folder, "process.json", kMostRecordBytes)) {
      if (auto facts = facts_of(*content)) {
        process.facts = *std::move(facts);
        process.on_this_host = process.facts.host == options_.host;
        followed.facts_inode = seen.st_ino;
      }
    }
  }
  if (const auto live = live_of(folder)) {
    const bool held = process.live && process.live->since_us == live->since_us && process.live->step == live->step &&
                      process.live->activity == live->activity && process.live->unit == live->unit;
    process.held_polls = held ? process.held_polls + 1 : 1;
    process.live = live;
  }
  // The file's time shows when a process of another host wrote last; a time in the future shows nothing.
  if (fstatat(folder.get(), "live", &seen, AT_SYMLINK_NOFOLLOW) == 0) {
    const auto us = seen.st_mtim.tv_sec * std::int64_t{1'000'000} + seen.st_mtim.tv_nsec / 1000;
    followed.written_us = process.on_this_host || us > now_us + kFutureUs ? 0 : us;
  }

  bool changed = false;
  const auto list = [&] {
    const auto change_us = change_time(folder);
    if (change_us == followed.listed_change_us) return;
    followed.files.clear();
    for (const auto& name : names_in(folder, options_.most_files))
      if (auto file = level_file(name)) followed.files.push_back(*std::move(file));
    followed.listed_change_us = now_us - change_us > kSettledUs ? change_us : -1;
  };
  // Passes each row to `append(level, row)`.
  const auto follow = [&](LevelFiles& files, auto& series, auto row_of, auto append) {
    for (int reading = 0; reading < kMostReadings; ++reading) {
      const auto outcome = files.read(folder, followed.files, [&](int level, std::optional<std::string_view> line) {
        auto row = line ? row_of(*line) : std::nullopt;
        changed = true;
        if (row) {
          append(level, *std::move(row));
        } else {
          ++process.skipped_lines;
        }
      });
      if (outcome == LevelFiles::Outcome::kRead) return;
      series = {};
      ++process.readings;
      followed.listed_change_us = -1;
      list();
    }
  };
  const auto sound_row = [](auto parse) {
    return [parse](std::string_view line) {
      auto row = parse(line);
      if (row && !sound(*row)) row.reset();
      return row;
    };
  };
  list();
  const auto most = share_of(options_.most_rows, options_.most_rows_together);
  const auto levels = [&](LevelFiles& files, auto& series, auto parse) {
    Appender appender(series, most);
    follow(files, series, sound_row(parse), [&](int level, auto row) { appender.append(level, std::move(row)); });
  };
  levels(followed.steps, process.steps, runtime::step_row);
  levels(followed.samples, process.samples, runtime::sample_row);
  levels(followed.metrics, process.metrics, runtime::metrics_row);
  // A row has as many spans as the model has units, so the bound is on spans, not on rows.
  const auto most_spans = std::max<std::size_t>(options_.most_spans_together / std::max<std::size_t>(run_.processes.size(), 1), 400);
  std::size_t spans = 0;
  for (const auto& row : process.spans.rows) spans += row.spans.size();
  follow(followed.spans, process.spans, sound_row(runtime::spans_row), [&](int, SpansRow row) {
    spans += row.spans.size();
    auto& rows = process.spans.rows;
    rows.push_back(std::move(row));
    ++process.spans.appended;
    while (rows.size() > options_.most_detailed || (rows.size() > 2 && spans > most_spans)) {
      spans -= rows.front().spans.size();
      rows.pop_front();
    }
  });
  const auto most_events = share_of(kMostEvents, options_.most_rows_together);
  follow(followed.events, process.events, event_of, [&](int, Event event) {
    auto& rows = process.events.rows;
    rows.push_back(std::move(event));
    ++process.events.appended;
    if (rows.size() > most_events) rows.erase(rows.begin() + 1);  // the first one is `begin`
  });
  return changed;
}

void RunReader::judge_life(Process& process, Followed& followed, std::int64_t now_us, std::int64_t steady_us) const {
  const std::int64_t beat_us = process.live ? process.live->beat_us : process.samples.rows.empty() ? 0 : process.samples.rows.back().t_us;
  if (beat_us != followed.beat_us && followed.beat_us != 0) followed.changed_us = steady_us;
  followed.beat_us = beat_us;
  // Clocks of hosts differ: once a beat has come, this host's clock measures alone. Until then the file's time counts, too.
  process.quiet_us = std::max<std::int64_t>(
      followed.changed_us != 0 ? steady_us - followed.changed_us : now_us - std::max(beat_us, followed.written_us), 0);
  const bool ended = std::any_of(process.events.rows.begin(), process.events.rows.end(), [](const Event& e) { return e.kind == "end"; });
  const auto pid = process.live ? process.live->pid : process.facts.pid;
  // When the clock is set, the start time that the kernel's data give moves. So the recorded start time is moved by the same amount.
  auto start_us = process.live ? process.live->start_us : process.facts.start_us;
  for (const auto& e : process.events.rows)
    if (e.kind == "clock") start_us += number_in(e, "us");
  if (ended || (process.live && process.live->activity == runtime::Activity::kEnded)) {
    process.life = Life::kEnded;
  } else if (pid == 0 || (beat_us == 0 && !process.on_this_host)) {
    process.life = Life::kUnknown;
  } else if (process.on_this_host && process.quiet_us > kGoneAfterUs && !options_.lives(pid, start_us)) {
    process.life = Life::kGone;
  } else if (process.quiet_us > kLostAfterUs && !process.on_this_host) {
    process.life = Life::kGone;
  } else {
    process.life = process.live && process.quiet_us > kSilentAfterUs ? Life::kSilent : Life::kAlive;
  }
}

void RunReader::judge_state() {
  const auto any = [&](Life life) {
    return std::any_of(run_.processes.begin(), run_.processes.end(),
                       [&](const Process& p) { return p.life == life && p.facts.role != "launcher"; });
  };
  // The record of `shoal run` counts more than beats: it is written last of all, when the last beat of a rank may still be young.
  run_.state = run_.end                                  ? RunState::kEnded
               : any(Life::kAlive) || any(Life::kSilent) ? RunState::kRunning
               : any(Life::kEnded)                       ? RunState::kEnded
                                                         : RunState::kLost;
}

bool is_run_folder(const std::string& folder) {
  const Fd opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return opened && (open_folder(opened, "processes") || open_file(opened, "exit.json"));
}

}  // namespace shoal::scheduler::runs
