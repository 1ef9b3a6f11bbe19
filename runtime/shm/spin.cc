#include "runtime/shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

namespace shoal::runtime {

namespace {
constexpr std::chrono::microseconds kBrief(50);        // most runs are over by then: nothing is counted anew between their looks
constexpr std::chrono::milliseconds kLongestAway(20);  // what is longer was no turn of somebody's: this process was stopped

// How often another one had this thread's core. (Its CPU time would not do: a virtual machine's own pauses are missing there, too.)
long switches() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw + usage.ru_nivcsw;
}
}  // namespace

bool Spin::worth() {
  if (not_before_ != Clock::time_point()) {
    if (Clock::now() < not_before_) return false;
    not_before_ = {};
  }
  return credit_ > 0 || ++passed_ % options_.probe_every == 0;
}

void Spin::begin(std::chrono::nanoseconds at_most) {
  begun_ = Clock::now();
  at_most_ = at_most;
  batches_ = 0;
}

bool Spin::lost(Clock::time_point now) {
  if (looked_ < begun_) return false;  // it was not offered yet
  const auto away = now - looked_;
  if (away <= options_.lost || switches() == switches_) return false;
  not_before_ = now + options_.rest * std::min<Clock::duration>(away, kLongestAway);
  return true;
}

bool Spin::found() {
  if (batches_ == 0) return true;  // it was there: no merit of looking on
  if (looked_ < begun_ || !lost(Clock::now())) credit_ = std::min(credit_ + 1, options_.max_credit);
  return true;
}

bool Spin::goes_on() {
  ++batches_;
  const auto now = Clock::now();
  const auto since = now - begun_;
  if (lost(now)) return false;
  if (since >= options_.limit) {
    credit_ = std::max(credit_ - options_.miss_costs, 0);
    return false;
  }
  if (since >= at_most_) return false;
  if (since < options_.alone) return true;
  if (looked_ < begun_ || since > kBrief) switches_ = switches();
  ::sched_yield();
  looked_ = now;
  return true;
}

}  // namespace shoal::runtime
