#include "scheduler/cli/run/run_watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "runtime/telemetry/telemetry.h"
#include "scheduler/cli/output.h"
#include "scheduler/runs/run_reader.h"
#include "scheduler/runs/verdict.h"

namespace shoal::scheduler::cli {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kInterval = milliseconds(100);
constexpr int kShare = 10;                         // after each read the thread rests ten times as long
constexpr auto kPatience = milliseconds(1500);     // how long the end waits for the thread
constexpr int kLastPolls = 9;                      // number of polls after the script's end in which a death on this host becomes known
constexpr std::int64_t kForgottenUs = 60'000'000;  // a trouble that comes back later is reported again

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "";
}

std::int64_t time_of_day_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::set<std::string> present(const std::string& folder) {
  std::set<std::string> out;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder + "/processes", error), end; !error && at != end; at.increment(error))
    out.insert(at->path().filename());
  return out;
}

}  // namespace

class RunWatch::Work {
 public:
  explicit Work(std::string folder) : folder_(std::move(folder)) {}

  void run() {
    const auto earlier = present(folder_);
    std::unique_lock lock(mutex_);
    while (!ends_) {
      lock.unlock();
      const auto begin = steady_clock::now();
      poll(earlier);
      const auto rest = std::max<steady_clock::duration>(kInterval, kShare * (steady_clock::now() - begin));
      lock.lock();
      wake_.wait_for(lock, rest, [this] { return ends_; });
    }
    // Ranks that have died with the script are found a few beats later.
    for (int i = 0; i < kLastPolls && by_itself_ && (i == 0 || any_undecided()); ++i) {
      if (i > 0) wake_.wait_for(lock, kInterval);
      lock.unlock();
      poll(earlier, true);
      lock.lock();
    }
    ended_ = true;
    wake_.notify_all();
  }

  void script_ended() {
    const std::lock_guard lock(mutex_);
    by_itself_ = true;
  }

  // True once the thread has ended.
  bool end() {
    std::unique_lock lock(mutex_);
    ends_ = true;
    wake_.notify_all();
    return wake_.wait_for(lock, kPatience, [this] { return ended_; });
  }

 private:
  // True if a rank of this host has neither ended nor is known to be gone.
  bool any_undecided() const {
    if (!reader_) return false;
    const auto& all = reader_->run().processes;
    return std::any_of(all.begin(), all.end(),
                       [](const runs::Process& p) { return p.on_this_host && p.life == runs::Life::kAlive && p.rank() >= 0; });
  }

  // `script_ended`: then a run without a living process does not count as lost, since this command is about to write the run's end.
  void poll(const std::set<std::string>& earlier, bool script_ended = false) {
    const auto now_us = time_of_day_us();
    if (!reader_) {
      auto opened = runs::RunReader::open(folder_, {.left_out = earlier});
      if (!opened) return;  // no rank has begun
      reader_.emplace(std::move(*opened));
    }
    const auto steady_us = std::chrono::duration_cast<std::chrono::microseconds>(steady_clock::now().time_since_epoch()).count();
    reader_->poll(now_us, steady_us);
    std::optional<runs::Run> ended;
    if (script_ended) ended.emplace(reader_->run()).state = runs::RunState::kEnded;
    for (const auto& verdict : runs::diagnose(ended ? *ended : reader_->run(), now_us)) {
      if (verdict.state == runs::Health::kOk && !runs::is_note(verdict)) continue;
      if (verdict.code == "lost") continue;  // not reported, since this command itself writes the run's end
      auto& seen = seen_us_[{verdict.code, verdict.rank.value_or(-1)}];
      const bool again = seen == 0 || steady_us - seen > kForgottenUs;
      seen = steady_us;
      if (again) report(verdict);
    }
  }

  void report(const runs::Verdict& verdict) {
    if (!telemetry_) {
      runtime::ProcessFacts facts;
      facts.role = "launcher", facts.host = host_name();
      auto opened = runtime::Telemetry::open(folder_, std::move(facts));
      if (opened) telemetry_ = *opened;
    }
    const bool ok = verdict.state == runs::Health::kOk;
    if (telemetry_)
      telemetry_->event(ok ? "note" : "verdict", runs::to_json(verdict).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    // Verdicts that are not printed: an ended process's error comes with its exit, waits may end soon, and the driver prints deaths.
    for (const char* code : {"dead_rank", "dead_driver", "failed", "waiting", "deaths"})
      if (verdict.code == code) return;
    const auto next = verdict.next.empty() ? "" : fmt::format(" ({})", verdict.next);
    print(stderr, "shoal: {}\n", verdict.sentence + next);
    std::fflush(stderr);
  }

  const std::string folder_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false, ended_ = false;
  bool by_itself_ = false;  // the script has ended by itself, so no signal has killed its ranks

  // ---- the thread's
  std::optional<runs::RunReader> reader_;
  std::shared_ptr<runtime::Telemetry> telemetry_;                // this command's part of the run's folder, opened with its first verdict
  std::map<std::pair<std::string, int>, std::int64_t> seen_us_;  // by code and rank: the steady time when the trouble was there last
};

RunWatch::RunWatch(const std::string& folder) : work_(std::make_shared<Work>(folder)) {
  thread_ = std::make_unique<runtime::SideThread>([work = work_] { work->run(); });
}

void RunWatch::script_ended() { work_->script_ended(); }

RunWatch::~RunWatch() {
  if (!work_->end()) (void)thread_.release();
}

}  // namespace shoal::scheduler::cli
