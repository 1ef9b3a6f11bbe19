#include "runtime/telemetry/telemetry.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/process/memory_limit.h"

namespace shoal::runtime {

using Json = nlohmann::ordered_json;

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
constexpr auto kInterval = std::chrono::milliseconds(250);
constexpr std::int64_t kDetailInterval = 2 * kSecond;
constexpr std::int64_t kRetryInterval = 5 * kSecond;
constexpr std::int64_t kIdle = kSecond;         // nothing else follows a step after that time
constexpr std::int64_t kClockJumpUs = 500'000;  // NTP slews by less within a quarter of a second
constexpr std::size_t kPageBytes = 4096;

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

// A part of a file name.
std::string plain(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 64)) out += std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ? c : '_';
  return out.empty() ? "host" : out;
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
  // Counts since the process's start and levels: the last one. A peak of memory or pressure must not get lost.
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

LivePage* make_page(const Fd& folder) {
  const Fd file(openat(folder.get(), "live", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  // A store into a page without a block on the disk would end the process once the disk is full.
  if (!file || posix_fallocate(file.get(), 0, kPageBytes) != 0) return nullptr;
  void* const at = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return at == MAP_FAILED ? nullptr : static_cast<LivePage*>(at);
}

}  // namespace

std::int64_t Telemetry::now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

Result<std::shared_ptr<Telemetry>> Telemetry::open(const std::string& run, ProcessFacts facts) {
  namespace fs = std::filesystem;
  const auto start = time_of_day_us();
  const auto name = fmt::format("{}-{}-{}", plain(facts.host), getpid(), start);
  const auto path = fs::path(run) / "processes" / name;
  const mode_t before = umask(0077);
  std::error_code error;
  fs::create_directories(path, error);
  umask(before);
  if (error) return fail(from_errno(error.value(), path.string()));
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return fail(from_errno(errno, path.string()));
  std::shared_ptr<Telemetry> out(new Telemetry(path.string(), std::move(folder), std::move(facts), start));
  // A process that is killed soon has a name, too.
  SHOAL_OK(out->write_facts(out->facts()));
  out->thread_ = std::make_unique<SideThread>([telemetry = out.get()] { telemetry->run(); });
  return out;
}

Telemetry::Telemetry(std::string path, Fd folder, ProcessFacts facts, std::int64_t start_us)
    : path_(std::move(path)),
      folder_(std::move(folder)),
      start_us_(start_us),
      facts_(std::move(facts)),
      meter_(now_ns()),
      offset_us_(time_of_day_us() - now_ns() / 1000),
      page_(make_page(folder_)),
      step_file_(folder_, "steps", {}, merge_rows<StepRow>(step_row, [](StepRow& sum, const StepRow& later) { sum.add(later); })),
      span_file_(folder_, "spans", {.kept = 4}),
      sample_file_(folder_, "samples", {}, merge_rows<SampleRow>(sample_row, add_samples)),
      metric_file_(folder_, "metrics", {},
                   merge_rows<MetricsRow>(metrics_row, [](MetricsRow& sum, const MetricsRow& later) { sum = later; })),
      event_file_(folder_, "events", {.bytes = 2 * kMostEventBytes, .kept = 1, .levels = 1}) {
  if (page_ == nullptr) return;
  page_->pid = getpid();
  page_->start_us = start_us_;
  page_->beat_us = start_us_;
  page_->rank = static_cast<std::uint32_t>(facts_.rank);
  page_->world = static_cast<std::uint32_t>(facts_.world);
  page_->generation = static_cast<std::uint32_t>(generation_);
  page_->thread = static_cast<std::int32_t>(syscall(SYS_gettid));
  show();
  page_->magic = LivePage::kMagic;
}

Telemetry::~Telemetry() {
  if (owner_.forked()) {
    (void)thread_.release();  // NOLINT(bugprone-unused-return-value): the thread is the parent's
    return;
  }
  close(std::nullopt, "");
  if (page_ != nullptr) munmap(page_, kPageBytes);
}

void Telemetry::show() {
  if (page_ == nullptr) return;
  const auto activity = static_cast<std::uint32_t>(meter_.activity());
  if (page_->activity.load(std::memory_order_relaxed) != activity || last_event_ns_ == 0)
    page_->since_us.store(unix_us(last_event_ns_ == 0 ? now_ns() : last_event_ns_), std::memory_order_relaxed);
  page_->activity.store(activity, std::memory_order_relaxed);
  page_->unit.store(meter_.unit(), std::memory_order_relaxed);
}

void Telemetry::go(Activity activity) {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.go(activity, last_event_ns_);
  collect(meter_.take());
  show();
}

Activity Telemetry::activity() const {
  const std::lock_guard lock(mutex_);
  return meter_.activity();
}

void Telemetry::unit_begin(Activity activity, int unit) {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.unit_begin(activity, unit, last_event_ns_);
  collect(meter_.take());
  show();
}

void Telemetry::unit_end(Activity activity, int unit) {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.unit_end(activity, unit, last_event_ns_);
  show();
}

void Telemetry::end_pass() {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.end_pass(last_event_ns_);
  show();
}

void Telemetry::wait_begin(Activity wait, int unit) {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.wait_begin(wait, unit, last_event_ns_);
  show();
}

void Telemetry::wait_end() {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.wait_end(last_event_ns_);
  show();
}

void Telemetry::optimizer_end() {
  if (paused_.load(std::memory_order_relaxed)) return;
  const auto cpu = thread_cpu_ns();
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.end_step(last_event_ns_, cpu);
  show();
}

void Telemetry::unwind() {
  if (paused_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  last_event_ns_ = now_ns();
  meter_.unwind(last_event_ns_);
  show();
}

void Telemetry::set_paused(bool paused) {
  const std::lock_guard lock(mutex_);
  collect(meter_.take_last());
  meter_ = StepMeter(now_ns());
  paused_ = paused;
}

void Telemetry::collect(std::optional<StepMeter::Step> step) {
  if (!step) return;
  ++steps_;
  auto& row = step->row;
  row.step = steps_;
  row.rank = facts_.rank, row.world = facts_.world, row.generation = generation_;
  row.end_us = unix_us(step->end);
  if (page_ != nullptr) page_->step.store(steps_, std::memory_order_relaxed);
  const auto due = [&](std::uint64_t number) { return number < 4 || number % detail_every_ == 0; };
  if (due(steps_) && !step->spans.empty() && pending_.spans.size() < kMostPending / 1000)
    pending_.spans.push_back({steps_, facts_.rank, unix_us(step->begin), std::move(step->spans)});
  // The ranks' steps take about as long, so they choose powers of two of which one is a multiple of the other.
  const auto length = std::max<std::int64_t>(step->end - step->begin, 1);
  while (static_cast<std::int64_t>(detail_every_) * length < kDetailInterval) detail_every_ *= 2;
  while (detail_every_ > 1 && static_cast<std::int64_t>(detail_every_) * length > 4 * kDetailInterval) detail_every_ /= 2;
  meter_.set_detailed(due(steps_ + 1));
  if (pending_.steps.size() < kMostPending) pending_.steps.push_back(row);
}

void Telemetry::set_member(int rank, int world, int generation) {
  const std::lock_guard lock(mutex_);
  collect(meter_.take_last());
  facts_.rank = rank, facts_.world = world, generation_ = generation;
  if (page_ == nullptr) return;
  page_->rank = static_cast<std::uint32_t>(rank);
  page_->world = static_cast<std::uint32_t>(world);
  page_->generation = static_cast<std::uint32_t>(generation);
}

void Telemetry::set_step(std::uint64_t step) {
  const std::lock_guard lock(mutex_);
  collect(meter_.take_last());
  steps_ = step;
  if (page_ != nullptr) page_->step = step;
}

std::uint64_t Telemetry::step() const {
  const std::lock_guard lock(mutex_);
  return ended_steps();
}

int Telemetry::add_units(const std::vector<std::string>& names) {
  const std::lock_guard lock(mutex_);
  // A loop that runs again after a death makes the same model.
  const auto same = std::search(units_.begin(), units_.end(), names.begin(), names.end());
  const auto first = static_cast<int>(same - units_.begin());
  if (same != units_.end()) return first;
  units_.insert(units_.end(), names.begin(), names.end());
  facts_changed_ = true;
  return first;
}

void Telemetry::metrics(const std::vector<std::pair<std::string, double>>& values) {
  const std::lock_guard lock(mutex_);
  if (pending_.metrics.size() < kMostPending) pending_.metrics.push_back({unix_us(now_ns()), ended_steps(), values});
}

void Telemetry::event(const std::string& kind, const std::string& fields) {
  const std::lock_guard lock(mutex_);
  add_event(kind, fields);
}

void Telemetry::add_event(const std::string& kind, const std::string& fields) {
  if (closed_ || pending_.events.size() > kMostEventBytes / 4) return;
  auto given = Json::parse(fields, nullptr, false);
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

void Telemetry::beat() {
  const auto now = now_ns();
  const auto offset = time_of_day_us() - now / 1000;
  if (const auto jump = offset - offset_us_; std::abs(jump) > kClockJumpUs) add_event("clock", fmt::format(R"({{"us":{}}})", jump));
  offset_us_ = offset;
  if (page_ != nullptr) page_->beat_us.store(unix_us(now), std::memory_order_relaxed);
}

void Telemetry::flush() {
  Pending rows;
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    beat();
    if (now_ns() - last_event_ns_ > kIdle || closed_) collect(meter_.take_last());
    if (std::exchange(facts_changed_, false)) text = facts();
    std::swap(rows, pending_);
  }
  const auto now = now_ns();
  std::string samples;
  if (now - sampled_ns_ >= kSecond) {
    sampled_ns_ = now;
    samples = sample();
  }
  const auto lines = rows.steps.size() + rows.spans.size() + rows.metrics.size();
  if (stopped_ns_ && now < retry_ns_) {
    lost_ += lines;
    return;
  }
  auto written = text.empty() ? Result<void>() : write_facts(text);
  if (written) written = write(rows, samples);
  const std::lock_guard lock(mutex_);
  if (!written) {
    if (!text.empty()) facts_changed_ = true;
    if (!stopped_ns_) stopped_ns_ = now, add_event("recording_stopped", Json{{"cause", written.error().message()}}.dump());
    pending_.events.insert(0, rows.events);
    lost_ += lines;
    retry_ns_ = now + kRetryInterval;
  } else if (stopped_ns_) {
    stopped_ns_.reset();
    add_event("recording_goes_on", Json{{"lost_rows", lost_}}.dump());
  }
}

Result<void> Telemetry::write(const Pending& rows, const std::string& samples) {
  std::string steps, spans, metrics;
  for (const auto& row : rows.steps) steps += to_line(row) + '\n';
  for (const auto& row : rows.spans) spans += to_line(row) + '\n';
  for (const auto& row : rows.metrics) metrics += to_line(row) + '\n';
  SHOAL_OK(step_file_.append(steps));
  SHOAL_OK(span_file_.append(spans));
  SHOAL_OK(metric_file_.append(metrics));
  SHOAL_OK(sample_file_.append(samples));
  if (event_file_.bytes() + rows.events.size() <= kMostEventBytes) return event_file_.append(rows.events);
  if (std::exchange(events_left_out_, true)) return {};
  return event_file_.append(fmt::format(R"({{"t":{},"kind":"events_left_out","cause":"the events of this process take {} bytes"}})"
                                        "\n",
                                        time_of_day_us(), event_file_.bytes()));
}

Result<void> Telemetry::write_facts(const std::string& text) {
  const Fd file(openat(folder_.get(), "process.json.new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file) return fail(from_errno(errno, "process.json"));
  const auto line = text + '\n';
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
  if (page_ != nullptr) out.runqueue_us = runqueue_us(page_->thread.load(std::memory_order_relaxed));
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
  }
  wake_.notify_all();
  thread_.reset();
  retry_ns_ = 0;
  flush();
  if (page_ != nullptr) page_->activity = static_cast<std::uint32_t>(Activity::kEnded);
}

}  // namespace shoal::runtime
