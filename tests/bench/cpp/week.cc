// week FOLDER DAYS STEP_MS: writes the folder of a run of one rank that has trained for so long, with the recorder itself.
//
// This program's time is simulated: the recorder reads the clocks below, which the training moves on. The recorder's thread writes once in
// a simulated second. The run has ended by now. Output: one JSON object.
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "runtime/telemetry/telemetry.h"

namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// The time of CLOCK_MONOTONIC: the training's, and the recorder's, which follows at the ends of steps.
std::int64_t training_ns = kSecond;
std::atomic<std::int64_t> recorder_ns = kSecond;
std::atomic<std::uint64_t> num_idle = 0;  // how often the recorder found that its next writing is not due
std::int64_t began_ns = 0;                // the time of day when CLOCK_MONOTONIC was 0
thread_local bool trains = false;

}  // namespace

// These take the place of libc's in the whole program.
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_REALTIME) return static_cast<int>(syscall(SYS_clock_gettime, clock, out));
  const std::int64_t now = (trains ? training_ns : recorder_ns.load()) + (clock == CLOCK_REALTIME ? began_ns : 0);
  *out = {now / kSecond, now % kSecond};
  return 0;
}
extern "C" int pthread_cond_clockwait(pthread_cond_t*, pthread_mutex_t* mutex, clockid_t, const timespec* until) {
  pthread_mutex_unlock(mutex);
  sched_yield();
  pthread_mutex_lock(mutex);
  if (until->tv_sec * kSecond + until->tv_nsec <= recorder_ns) return ETIMEDOUT;
  ++num_idle;
  return 0;
}

namespace {

using shoal::runtime::Activity;
using shoal::runtime::Telemetry;

constexpr int kUnits = 13;

void pass(std::int64_t ns) { training_ns += ns; }

// The recorder writes what it writes by now, while the training stands still.
void catch_up() {
  recorder_ns = training_ns;
  for (const auto seen = num_idle.load(); num_idle < seen + 2;) sched_yield();
}

// A rank's steps, each with waits for others in forward and backward.
class Training {
 public:
  Training(Telemetry& telemetry, std::int64_t step_ns)
      : telemetry_(telemetry),
        step_ns_(step_ns),
        saves_every_(static_cast<std::uint64_t>(std::max<std::int64_t>(3600 * kSecond / step_ns, 1))) {}

  void step(std::uint64_t number) {
    const std::int64_t begin = training_ns;
    const std::int64_t noise = static_cast<std::int64_t>(number * 2'654'435'761 % 1000);  // up to 1 % of a part
    telemetry_.begin_batch();
    within(Activity::kLoader, -1, step_ns_ / 50 + noise * step_ns_ / 5'000'000);
    pass_through(Activity::kForward, Activity::kGather, step_ns_ / 4);
    pass_through(Activity::kBackward, Activity::kReduce, step_ns_ / 2);
    telemetry_.begin(Activity::kOptimizer, 1);
    pass(step_ns_ / 20);
    telemetry_.end_optimizer(1);
    pass(std::max<std::int64_t>(begin + step_ns_ - training_ns, 0));
    telemetry_.metrics({{"loss", 1.6 + static_cast<double>(noise) / 1e4}, {"grad_norm", 1.1}, {"lr", 3e-4}});
    if (number % saves_every_ == 0) {
      telemetry_.event("save",
                       fmt::format(R"({{"path":"/checkpoints/step-{}","step":{},"bytes":1288490188,"us":162000}})", number, number));
    }
    if (training_ns - recorder_ns >= kSecond) catch_up();
  }

 private:
  void within(Activity activity, int unit, std::int64_t ns) {
    telemetry_.begin(activity, unit);
    pass(ns);
    telemetry_.end(activity, unit);
  }
  void pass_through(Activity work, Activity wait, std::int64_t ns) {
    for (int unit = 0; unit < kUnits; ++unit) {
      telemetry_.begin(work, unit);
      telemetry_.wait_begin(wait, unit);
      pass(ns / kUnits / 10);
      telemetry_.wait_end();
      pass(ns / kUnits * 9 / 10);
      telemetry_.end(work, unit);
    }
  }
  Telemetry& telemetry_;
  const std::int64_t step_ns_;
  const std::uint64_t saves_every_;
};

}  // namespace

int main(int argc, char** argv) {
  const double days = argc == 4 ? std::atof(argv[2]) : 0;
  const std::int64_t step_ns = argc == 4 ? std::atoll(argv[3]) * 1'000'000 : 0;
  if (days <= 0 || step_ns <= 0) {
    std::fputs("week FOLDER DAYS STEP_MS\n", stderr);
    return 2;
  }
  trains = true;
  timespec now{};
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
  const auto length_ns = static_cast<std::int64_t>(days * 86'400) * kSecond;
  began_ns = now.tv_sec * kSecond - length_ns - 60 * kSecond;
  const auto telemetry = Telemetry::open(argv[1], {.role = "rank", .host = "a", .device = "cpu", .argv = {"train.py"}});
  if (!telemetry) {
    std::fprintf(stderr, "week: %s\n", telemetry.error().message().c_str());
    return 1;
  }
  std::vector<std::string> units = {""};
  for (int i = 1; i < kUnits; ++i) units.push_back(fmt::format("layers.{}", i - 1));
  (*telemetry)->add_units(units);
  const auto steps = static_cast<std::uint64_t>(length_ns / step_ns);
  Training training(**telemetry, step_ns);
  for (std::uint64_t i = 1; i <= steps; ++i) training.step(i);
  (*telemetry)->close(0, "");
  std::printf("{\"steps\":%llu,\"folder\":\"%s\"}\n", static_cast<unsigned long long>(steps), (*telemetry)->folder().c_str());
  return 0;
}
