#include "scheduler/node/processes/memory_monitor.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "actors/protocol/cluster/rows.h"

namespace shoal::scheduler {

namespace {

constexpr double kFillsPerSecond = 4.0 * (1u << 30);  // bytes; as fast as one core fills memory, which nearly saturates a memory bus
constexpr std::chrono::milliseconds kSoonest(100), kLatest(2000);
// Divisors of the limit: a worker with less than limit / kWorthIt is hardly worth ending. If all workers together have less than limit /
// kFills, other programs fill the memory.
constexpr std::uint64_t kWorthIt = 100, kFills = 20;
constexpr std::uint64_t kWorthItBytes = std::uint64_t{256} << 20;
constexpr std::size_t kTopUsers = 5;

const char* const kHint =
    "run fewer calls at once on a node (num_cpus= or memory= of functions and actors), use less memory in each, or add memory; the "
    "threshold is "
    "--memory-usage-threshold of `shoal start`, or SHOAL_MEMORY_USAGE_THRESHOLD (1: no process is killed)";

Error out_of_memory(std::string text) { return unavailable(std::move(text)).with_reason(actors::kOutOfMemory).with_hint(kHint); }

std::string text_of(const MemoryUser& u) { return fmt::format("{} (pid {}) {}", u.who, u.pid, bytes_text(u.bytes)); }

// Names the workers that use most memory, largest first.
std::string top_of(std::vector<MemoryUser> users) {
  std::stable_sort(users.begin(), users.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::string out;
  for (std::size_t i = 0; i < std::min(users.size(), kTopUsers); ++i) out += (i ? ", " : "") + text_of(users[i]);
  if (users.size() > kTopUsers) out += fmt::format(", and {} more", users.size() - kTopUsers);
  return out;
}

std::uint64_t sum_of(const std::vector<MemoryUser>& users) {
  std::uint64_t out = 0;
  for (const auto& u : users) out += u.bytes;
  return out;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const auto amount = static_cast<double>(bytes);
  return bytes >= 1u << 30 ? fmt::format("{:.2f} GiB", amount / (1u << 30)) : fmt::format("{:.1f} MiB", amount / (1u << 20));
}

std::optional<std::size_t> whom_to_end(const std::vector<MemoryUser>& users, std::uint64_t limit) {
  const auto is_large = [&](const MemoryUser& u) { return u.bytes >= std::min(limit / kWorthIt, kWorthItBytes); };
  using Class = std::pair<bool, bool>;  // (large enough, work is retried)
  std::map<std::pair<JobId, Class>, std::size_t> sizes;
  for (const auto& u : users) ++sizes[{u.job, {is_large(u), u.run_again}}];
  const auto key = [&](const MemoryUser& u) {
    return std::tuple(is_large(u), u.run_again, sizes.at({u.job, {is_large(u), u.run_again}}), u.order);
  };
  const auto it = std::max_element(users.begin(), users.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  if (it == users.end()) return std::nullopt;
  return static_cast<std::size_t>(it - users.begin());
}

bool would_help(const std::vector<MemoryUser>& users, std::uint64_t used, std::uint64_t threshold_bytes, std::uint64_t limit) {
  return sum_of(users) >= std::max(used - std::min(used, threshold_bytes), limit / kFills);
}

runtime::Duration next_check(std::uint64_t used, std::uint64_t threshold_bytes) {
  const double seconds = static_cast<double>(threshold_bytes - std::min(used, threshold_bytes)) / kFillsPerSecond;
  const auto pause = std::chrono::milliseconds(static_cast<std::int64_t>(std::min(seconds, 1e6) * 1000));
  return std::clamp(pause, kSoonest, kLatest);
}

MemoryMonitor::MemoryMonitor(runtime::Clock& clock, runtime::Log log, Options options, Users users, Kill kill)
    : clock_(clock), log_(std::move(log)), options_(std::move(options)), users_(std::move(users)), kill_(std::move(kill)) {}

void MemoryMonitor::start() {
  if (options_.kernel_kills) kills_ = options_.kernel_kills();
  const bool on = options_.machine && options_.measure && options_.threshold > 0 && options_.threshold < 1;
  if (on || options_.kernel_kills) check();
}

void MemoryMonitor::again(runtime::Duration pause) {
  looking_ = clock_.after(pause, [this] { check(); });
}

std::uint64_t MemoryMonitor::threshold_of(std::uint64_t limit) const {
  return static_cast<std::uint64_t>(options_.threshold * static_cast<double>(limit));
}

void MemoryMonitor::measure(std::function<void(std::vector<MemoryUser>)> then) {
  std::vector<WorkerId> workers;
  std::vector<pid_t> pids;
  for (const auto& u : users_()) {
    workers.push_back(u.worker);
    pids.push_back(u.pid);
  }
  options_.measure(std::move(pids), [this, workers = std::move(workers), then = std::move(then)](const std::vector<std::uint64_t>& bytes) {
    std::vector<MemoryUser> users = users_();
    std::erase_if(users, [&](MemoryUser& u) {
      const auto k = static_cast<std::size_t>(std::find(workers.begin(), workers.end(), u.worker) - workers.begin());
      if (k < std::min(workers.size(), bytes.size())) u.bytes = bytes[k];
      return k >= bytes.size();
    });
    then(std::move(users));
  });
}

void MemoryMonitor::check() {
  forget_old_kills();
  if (!options_.machine || options_.threshold <= 0 || options_.threshold >= 1) return again(kLatest);
  if (ending_) return again(options_.at_end);  // workers are killed one at a time
  if (options_.limit > 0) {
    return measure([this](std::vector<MemoryUser> users) {
      const std::uint64_t used = sum_of(users);
      judge(used, options_.limit, std::move(users));
    });
  }
  const auto memory = options_.machine();
  const std::uint64_t used = memory.total - memory.available;
  if (comes_back(used)) return again(options_.at_end);
  if (used <= threshold_of(memory.total)) return judge(used, memory.total, {});
  measure([this, used, limit = memory.total](std::vector<MemoryUser> users) { judge(used, limit, std::move(users)); });
}

bool MemoryMonitor::comes_back(std::uint64_t used) const { return awaited_ && used > awaited_->used && clock_.now() < awaited_->until; }

void MemoryMonitor::judge(std::uint64_t used, std::uint64_t limit, std::vector<MemoryUser> users) {
  awaited_.reset();
  const std::uint64_t threshold = threshold_of(limit);
  if (used <= threshold) {
    in_vain_ = false;
    return again(next_check(used, threshold));
  }
  const std::string state = fmt::format("{} uses {} of {}, beyond the threshold of {:g} %", options_.where, bytes_text(used),
                                        bytes_text(limit), options_.threshold * 100);
  const auto chosen = would_help(users, used, threshold, limit) ? whom_to_end(users, limit) : std::nullopt;
  if (!chosen) {
    if (!std::exchange(in_vain_, true)) {
      log_->warn(
          "out of memory: {}; its workers have {} of that: ending them would not help, because drivers or other programs use the rest",
          state, bytes_text(sum_of(users)));
    }
    return again(options_.in_vain);
  }
  const MemoryUser victim = users[*chosen];
  const std::string text =
      fmt::format("{} (pid {}) was killed because memory ran short: it used {}, and {} ({})\nworkers that use most: {}", victim.who,
                  victim.pid, bytes_text(victim.bytes), state,
                  victim.run_again ? "the last started process whose work can be repeated" : "the last started", top_of(std::move(users)));
  log_->warn("out of memory: worker={} {}", to_string(victim.worker), text);
  ending_.emplace(victim.worker, out_of_memory(text));
  awaited_ = {used - std::min(used, victim.bytes / 2), {}};
  kill_(victim.worker);
  again(options_.at_end);
}

// The kernel counts a kill before it kills, and the node learns of the end later. So a new count is kept until a worker ends, but for
// `kernel_memory` at most. If no worker has ended by then, the kernel has killed another process.
void MemoryMonitor::forget_old_kills() {
  if (!options_.kernel_kills) return;
  const std::uint64_t now = options_.kernel_kills();
  if (now == kills_) {
    kills_since_.reset();
  } else if (!kills_since_) {
    kills_since_ = clock_.now();
  } else if (clock_.now() - *kills_since_ > options_.kernel_memory) {
    kills_ = now;
    kills_since_.reset();
  }
}

std::optional<Error> MemoryMonitor::cause_of_end(WorkerId worker, const std::string& who, pid_t pid, const runtime::ExitStatus& status,
                                                 bool requested) {
  if (ending_ && ending_->first == worker) {
    Error out = std::move(ending_->second);
    ending_.reset();
    if (awaited_) awaited_->until = clock_.now() + options_.coming_back;
    if (status.signal == SIGKILL) return out;
    return std::nullopt;  // the worker has ended by itself before the signal came
  }
  if (requested || status.signal != SIGKILL || !options_.kernel_kills || options_.kernel_kills() <= kills_) return std::nullopt;
  ++kills_;
  const auto memory = options_.machine ? options_.machine() : runtime::MachineMemory();
  const std::string text = fmt::format(
      "{} (pid {}) was killed by SIGKILL, by the kernel, because memory ran out: its count of such kills has risen; {} now uses {} of {}",
      who, pid, options_.where, bytes_text(memory.total - memory.available), bytes_text(memory.total));
  log_->warn("out of memory: worker={} {}", to_string(worker), text);
  return out_of_memory(text);
}

}  // namespace shoal::scheduler
