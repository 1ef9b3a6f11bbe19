#include "runtime/shm/spin.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace shoal::runtime {

namespace {
constexpr std::chrono::milliseconds kLongestAway(20);  // what is longer was no turn of somebody's: this process was stopped
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
  looks_ = options_.looks;
  batches_ = 0;
}

bool Spin::lost(Clock::time_point now) {
  if (looked_ < begun_) return false;  // it was not offered yet
  const auto away = now - looked_;
  const bool lost = away > options_.lost;
  if (!std::exchange(was_lost_, lost) || !lost) return false;
  not_before_ = now + options_.rest * std::min<Clock::duration>(away, kLongestAway);
  return true;
}

bool Spin::found() {
  if (batches_ == 0) return true;  // it was there: no merit of looking on
  if (!lost(Clock::now())) credit_ = std::min(credit_ + 1, options_.max_credit);
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
  ::sched_yield();
  looked_ = now;
  looks_ = options_.looks_between;
  return true;
}

}  // namespace shoal::runtime
