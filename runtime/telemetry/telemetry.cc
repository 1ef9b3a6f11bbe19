#include "runtime/telemetry/telemetry.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/process/memory_limit.h"
#include "runtime/wire/nesting.h"

namespace shoal::runtime {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr std::int64_t kDetailInterval = 2 * kSecond;
constexpr std::int64_t kRetryInterval = 5 * kSecond;
constexpr std::int64_t kIdle = kSecond;         // nothing else follows a step after that time
constexpr std::int64_t kClockJumpUs = 500'000;  // NTP slews by less within a quarter of a second

std::int64_t time_of_day_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
}

std::int64_t thread_cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

template <class Row, class Read>
Segments::Merge merge_rows(Read read, void (*add)(Row& sum, const Row& later)) {
  return [=](const std::vector<std::string_view>& lines) -> std::string {
    std::optional<Row> sum;
    for (const auto line : lines) {
      const auto row = read(line);
      if (!row) continue;
      if (sum) {
        add(*sum, *row);
      } else {
        sum = row;
      }
    }
    return sum ? to_line(*sum) : "";
  };
}

void add_samples(SampleRow& sum, const SampleRow& later) {
  // The later sample has all counts, which begin at the process's start, and the present levels. But peaks must not get lost.
  const auto before = sum;
  sum = later;
  sum.samples += before.samples;
  sum.rss = std::max(before.rss, later.rss);
  sum.host_free = std::min(before.host_free, later.host_free);
  sum.pressure_cpu = std::max(before.pressure_cpu, later.pressure_cpu);
  sum.pressure_io = std::max(before.pressure_io, later.pressure_io);
  sum.pressure_memory = std::max(before.pressure_memory, later.pressure_memory);
}

// The percentage "some avg10" of a file of /proc/pressure; 0 without it.
double pressure(const char* path) {
  std::ifstream file(path);
  std::string some, avg10;
  file >> some >> avg10;
  return avg10.starts_with("avg10=") ? std::strtod(avg10.c_str() + 6, nullptr) : 0;
}

std::int64_t runqueue_us(std::int32_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/schedstat", thread));
  std::int64_t on_cpu = 0, waiting = 0;
  file >> on_cpu >> waiting;
  return waiting / 1000;
}

// Counts the forks of this process, so that a forked child knows itself without a system call.
std::atomic<int> forks = 0;

void count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
}

// Makes RUN/processes/NAME, each of this user alone.
Fd make_folder(const std::string& run, const std::string& name) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(fs::path(run).parent_path(), error);
  const auto all = run + "/processes";
  for (const auto& path : {run, all, all + "/" + name})
    if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return {};
  return Fd(::open((all + "/" + name).c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

}  // namespace

std::int64_t Telemetry::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

std::string name_of_host(std::string_view host) {
  std::string out;
  for (const char c : host.substr(0, 64)) out += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ? c : '_';
  return out.empty() ? "host" : out;
}

Result<std::shared_ptr<Telemetry>> Telemetry::open(const std::string& run, ProcessFacts facts) {
  count_forks();
  const auto start = time_of_day_us();
  const auto name = fmt::format("{}-{}-{}", name_of_host(facts.host), getpid(), start);
  auto folder = make_folder(run, name);
  const auto path = run + "/processes/" + name;
  if (!folder) return fail(from_errno(errno, path));
  // A forked child has no thread to join, and the parent's may wait at the copied condition variable. So it leaves the object alone.
  std::shared_ptr<Telemetry> out(new Telemetry(path, std::move(folder), std::move(facts), start), [](Telemetry* t) {
    if (!t->owner_.forked()) delete t;
  });
  // At once, so that a process that is killed soon has a name, too.
  SHOAL_OK(out->write_facts(out->facts()));
  try {
    out->thread_ = std::make_unique<SideThread>([telemetry = out.get()] { telemetry->run(); });
  } catch (const std::system_error& error) {  // the limit of threads is reached
    out.reset();
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);  // readers would take the folder for that of a rank that has ended
    return fail(from_errno(error.code().value(), "the thread that records"));
  }
  return out;
}

Telemetry::Telemetry(std::string path, Fd folder, ProcessFacts facts, std::int64_t start_us)
    : path_(std::move(path)),
      folder_(std::move(folder)),
      forks_(forks.load(std::memory_order_relaxed)),
      start_us_(start_us),
      facts_(std::move(facts)),
      meter_(now_ns()),
      offset_us_(time_of_day_us() - now_ns() / 1000),
      shown_since_us_(start_us_),
      thread_id_(static_cast<int>(syscall(SYS_gettid))),
      step_file_(folder_, "steps", {}, merge_rows<StepRow>(step_row, [](StepRow& sum, const StepRow& later) { sum.add(later); })),
      span_file_(folder_, "spans", {.kept = 4}),
      sample_file_(folder_, "samples", {}, merge_rows<SampleRow>(sample_row, add_samples)),
      metric_file_(folder_, "metrics", {},
                   merge_rows<MetricsRow>(metrics_row, [](MetricsRow& sum, const MetricsRow& later) { sum = later; })),
      event_file_(folder_, "events", {.bytes = 4 * kMostEventBytes, .kept = 1, .levels = 1}),
      live_(openat(folder_.get(), "live", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)) {
  page_.magic = LivePage::kMagic;
  page_.pid = getpid();
  page_.start_us = start_us_;
}

Telemetry::~Telemetry() { close(std::nullopt, ""); }

bool Telemetry::silent() const { return silent_.load(std::memory_order_relaxed) || forks.load(std::memory_order_relaxed) != forks_; }

template <class F>
void Telemetry::at_now(F&& change) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  change(last_event_ns_);
  collect(meter_.take());
  show();
}

void Telemetry::show() {
  if (const auto activity = meter_.activity(); std::exchange(shown_, activity) != activity) shown_since_us_ = unix_us(last_event_ns_);
}

void Telemetry::begin(Activity activity, int key) {
  at_now([&](std::int64_t now) { meter_.begin(activity, key, now); });
}

void Telemetry::end(Activity activity, int key) {
  at_now([&](std::int64_t now) { meter_.end(activity, key, now); });
}

void Telemetry::begin_batch() {
  at_now([&](std::int64_t now) { meter_.begin_batch(now); });
}

void Telemetry::unwind() {
  at_now([&](std::int64_t now) { meter_.unwind(now); });
}

void Telemetry::wait_begin(Activity wait, int unit) {
  at_now([&](std::int64_t now) { meter_.wait_begin(wait, unit, now); });
}

void Telemetry::wait_end() {
  at_now([&](std::int64_t now) { meter_.wait_end(now); });
}

void Telemetry::end_optimizer(int key) {
  if (silent()) return;
  const auto cpu = thread_cpu_ns();
  const auto thread = static_cast<int>(syscall(SYS_gettid));
  at_now([&](std::int64_t now) {
    // CPU times are known per thread, so those of two threads cannot be subtracted.
    const bool same = std::exchange(thread_id_, thread) == thread;
    check_clock(now);  // checked here, so that the step in which the clock jumps is known
    meter_.end_optimizer(key, now, same ? std::optional(cpu) : std::nullopt);
  });
}

void Telemetry::set_paused(bool paused) {
  if (silent() && paused) return;
  const std::lock_guard lock(mutex_);
  collect(meter_.take_idle(true));
  meter_ = StepMeter(now_ns());
  silent_ = paused || closed_;
}

void Telemetry::collect(std::optional<StepMeter::Step> step) {
  if (!step) return;
  ++steps_;
  auto& row = step->row;
  row.step = steps_;
  row.rank = facts_.rank, row.world = facts_.world, row.generation = generation_;
  row.end_us = unix_us(step->end);
  const auto due = [&](std::uint64_t number) { return number < 4 || number % detail_every_ == 0; };
  if (due(steps_) && !step->spans.empty() && pending_.spans.size() < kMostPending / 1000)
    pending_.spans.push_back({steps_, facts_.rank, unix_us(step->begin), std::move(step->spans)});
  // A power of two: if ranks choose different intervals, one is a multiple of the other, so they still have detailed steps in common.
  const auto length = std::max<std::int64_t>(step->end - step->begin, 1);
  while (static_cast<std::int64_t>(detail_every_) * length < kDetailInterval) detail_every_ *= 2;
  while (detail_every_ > 1 && static_cast<std::int64_t>(detail_every_) * length > 4 * kDetailInterval) detail_every_ /= 2;
  meter_.set_detailed(due(steps_ + 1));
  if (pending_.steps.size() < kMostPending) pending_.steps.push_back(row);
}

void Telemetry::set_member(int rank, int world, int generation) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  collect(meter_.take_idle(true));
  facts_.rank = rank, facts_.world = world, generation_ = generation;
}

void Telemetry::set_step(std::uint64_t step) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  collect(meter_.take_idle(true));
  steps_ = step;
}

std::uint64_t Telemetry::step() const {
  if (silent()) return 0;
  const std::lock_guard lock(mutex_);
  return ended_steps();
}

int Telemetry::add_units(const std::vector<std::string>& names) {
  if (silent()) return 0;
  const std::lock_guard lock(mutex_);
  for (auto& m : models_) {
    const auto first = units_.begin() + m.first;
    if (!m.dropped || !std::equal(first, first + static_cast<std::ptrdiff_t>(m.size), names.begin(), names.end())) continue;
    m.dropped = false;
    return m.first;
  }
  models_.push_back({static_cast<int>(units_.size()), names.size(), false});
  units_.insert(units_.end(), names.begin(), names.end());
  facts_changed_ = true;
  return models_.back().first;
}

void Telemetry::drop_units(int first) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  for (auto& m : models_)
    if (m.first == first) m.dropped = true;
}

void Telemetry::metrics(const std::vector<std::pair<std::string, double>>& values) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  if (pending_.metrics.size() < kMostPendingMetrics) pending_.metrics.push_back({unix_us(now_ns()), ended_steps(), values});
}

void Telemetry::event(const std::string& kind, const std::string& fields) {
  if (silent()) return;
  const std::lock_guard lock(mutex_);
  add_event(kind, fields);
}

void Telemetry::add_event(const std::string& kind, const std::string& fields) {
  if (pending_.events.size() > kMostEventBytes / 4) {
    ++dropped_events_;
    return;
  }
  auto given = nesting(fields) > kMaxNesting ? Json() : Json::parse(fields, nullptr, false);
  if (!given.is_object()) given = {{"text", fields}};
  Json out = {{"t", unix_us(now_ns())}, {"kind", kind}};
  out.update(given);
  pending_.events += out.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string Telemetry::facts() const {
  return Json{{"schema", "shoal.process/1"}, {"role", facts_.role}, {"rank", facts_.rank}, {"world", facts_.world},
              {"host", facts_.host},         {"pid", getpid()},     {"start", start_us_},  {"local_rank", facts_.local_rank},
              {"device", facts_.device},     {"units", units_},     {"argv", facts_.argv}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Telemetry::run() {
  pthread_setname_np(pthread_self(), "shoal-telemetry");
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    flush();
    lock.lock();
    wake_.wait_for(lock, kInterval, [&] { return ends_; });
  }
}

void Telemetry::check_clock(std::int64_t now) {
  const auto offset = time_of_day_us() - now / 1000;
  const auto jump = offset - std::exchange(offset_us_, offset);
  if (std::abs(jump) > kClockJumpUs) {
    add_event("clock", fmt::format(R"({{"us":{}}})", jump));  // this event has the new time of day
    shown_since_us_ += jump;                                  // the activity lasts as long as before
  }
}

void Telemetry::beat() {
  const auto now = now_ns();
  check_clock(now);
  page_.beat_us = unix_us(now);
  page_.since_us = shown_since_us_;
  page_.activity = static_cast<std::uint32_t>(closed_ ? Activity::kEnded : shown_);
  page_.unit = meter_.unit();
  page_.step = ended_steps();
  page_.rank = static_cast<std::uint32_t>(facts_.rank);
  page_.world = static_cast<std::uint32_t>(facts_.world);
  page_.generation = static_cast<std::uint32_t>(generation_);
  page_.thread = thread_id_;
}

void Telemetry::flush() {
  const auto now = now_ns();
  // During an interval in which writes fail, rows wait in memory, up to a bound.
  const bool writes = !stopped_ns_ || now >= retry_ns_;
  Pending rows;
  std::string text;
  std::array<char, sizeof(LivePage)> page{};
  {
    const std::lock_guard lock(mutex_);
    beat();
    std::memcpy(page.data(), static_cast<const void*>(&page_), page.size());
    if (now - last_event_ns_ > kIdle || closed_) collect(meter_.take_idle(closed_));
    if (writes) {
      if (std::exchange(facts_changed_, false)) text = facts();
      if (const auto dropped = std::exchange(dropped_events_, 0); dropped > 0)
        pending_.events += fmt::format(R"({{"t":{},"kind":"events_left_out","number":{},"cause":"too many at once"}})"
                                       "\n",
                                       unix_us(now), dropped);
      std::swap(rows, pending_);
    }
  }
  (void)!pwrite(live_.get(), page.data(), page.size(), 0);
  if (!writes) return;
  std::string samples;
  if (now - sampled_ns_ >= kSecond) {
    sampled_ns_ = now;
    samples = sample();
  }
  auto written = text.empty() ? Result<void>() : write_facts(text);
  if (written) written = write(rows, samples);
  const std::lock_guard lock(mutex_);
  if (!written) {
    facts_changed_ = facts_changed_ || !text.empty();
    if (!stopped_ns_) stopped_ns_ = now, add_event("recording_stopped", Json{{"cause", written.error().message()}}.dump());
    pending_.events.insert(0, rows.events);
    lost_ += rows.steps.size() + rows.spans.size() + rows.metrics.size();
    retry_ns_ = now + kRetryInterval;
  } else if (stopped_ns_) {
    stopped_ns_.reset();
    add_event("recording_goes_on", Json{{"lost_rows", std::exchange(lost_, 0)}}.dump());
  }
}

Result<void> Telemetry::write(Pending& rows, const std::string& samples) {
  std::string steps, spans, metrics;
  for (const auto& row : rows.steps) steps += to_line(row) + '\n';
  for (const auto& row : rows.spans) spans += to_line(row) + '\n';
  for (const auto& row : rows.metrics) metrics += to_line(row) + '\n';
  SHOAL_OK(event_file_.append(rows.events.empty() ? "" : kept_events(rows.events)));
  rows.events.clear();  // a later failure does not repeat them
  SHOAL_OK(step_file_.append(steps));
  SHOAL_OK(span_file_.append(spans));
  SHOAL_OK(metric_file_.append(metrics));
  return sample_file_.append(samples);
}

std::string Telemetry::kept_events(const std::string& lines) {
  if (event_file_.bytes() + lines.size() <= kMostEventBytes) return lines;
  // The few events that state how the run ended or changed have room beyond the bound.
  std::string out;
  if (!std::exchange(events_left_out_, true))
    out = fmt::format(R"({{"t":{},"kind":"events_left_out","cause":"the events of this process take {} bytes"}})"
                      "\n",
                      time_of_day_us(), event_file_.bytes());
  for (std::string_view rest = lines; !rest.empty() && event_file_.bytes() + out.size() < 2 * kMostEventBytes;) {
    const auto line = rest.substr(0, rest.find('\n') + 1);
    for (const char* kind : {"end", "death", "generation", "verdict"})
      if (line.find(fmt::format(R"("kind":"{}")", kind)) != std::string_view::npos) out += line;
    rest.remove_prefix(line.size());
  }
  return out;
}

Result<void> Telemetry::write_facts(const std::string& text) {
  const Fd file(openat(folder_.get(), "process.json.new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return fail(from_errno(errno, "process.json"));
  const auto line = text + '\n';
  errno = ENOSPC;  // the error to report if write() stores only a part
  if (::write(file.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) return fail(from_errno(errno, "process.json"));
  if (renameat(folder_.get(), "process.json.new", folder_.get(), "process.json") != 0) return fail(from_errno(errno, "process.json"));
  return {};
}

std::string Telemetry::sample() {
  SampleRow out;
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto micros = [](const timeval& t) { return t.tv_sec * std::int64_t{1'000'000} + t.tv_usec; };
  out.cpu_us = micros(used.ru_utime) + micros(used.ru_stime);
  out.major_faults = used.ru_majflt;
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  statm >> pages >> pages;
  out.rss = pages * sysconf(_SC_PAGESIZE);
  out.runqueue_us = runqueue_us(page_.thread);
  const auto memory = machine_memory();
  out.host_free = static_cast<std::int64_t>(memory.available), out.host_total = static_cast<std::int64_t>(memory.total);
  out.pressure_cpu = pressure("/proc/pressure/cpu"), out.pressure_io = pressure("/proc/pressure/io");
  out.pressure_memory = pressure("/proc/pressure/memory");
  struct statvfs disk {};
  if (fstatvfs(folder_.get(), &disk) == 0) out.disk_free = static_cast<std::int64_t>(disk.f_bavail * disk.f_frsize);
  const std::lock_guard lock(mutex_);
  out.t_us = unix_us(now_ns());
  out.step = steps_;
  return to_line(out) + '\n';
}

void Telemetry::close(std::optional<int> code, const std::string& cause) {
  if (owner_.forked()) return;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    add_event("end", Json{{"code", code ? Json(*code) : Json()}, {"cause", cause}}.dump(-1, ' ', false, Json::error_handler_t::replace));
    closed_ = ends_ = true;
    silent_ = true;
  }
  wake_.notify_all();
  thread_.reset();
  retry_ns_ = 0;
  flush();
}

}  // namespace shoal::runtime
