#include "runtime/shm/spin.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace shoal::runtime {

namespace {
constexpr std::chrono::milliseconds kLongestAway(20);  // a longer absence means that this process was stopped
}  // namespace

void yield_core() { ::sched_yield(); }

bool Spin::should_spin() {
  if (not_before_ != Clock::time_point()) {
    if (Clock::now() < not_before_) return false;
    not_before_ = {};
  }
  return credit_ > 0 || ++passed_ % options_.probe_every == 0;
}

void Spin::begin(std::chrono::nanoseconds at_most) {
  begun_ = Clock::now();
  away_ = {};
  at_most_ = at_most;
  batch_ = options_.polls_per_check;
  batches_ = 0;
}

bool Spin::found() {
  // If the first looks found something, the run cost and earned nothing.
  if (batches_ > 0) credit_ = std::min(credit_ + 1, options_.max_credit);
  return true;
}

bool Spin::goes_on() {
  ++batches_;
  const auto now = Clock::now();
  const auto since = now - begun_;
  if (since - away_ >= options_.limit) {
    credit_ = std::max(credit_ - options_.miss_costs, 0);
    return false;
  }
  if (since >= at_most_) return false;
  if (since < options_.alone) return true;
  options_.yield_to_others();
  batch_ = options_.polls_per_offer;
  const auto back = Clock::now();
  return !preempted(back - now, back);
}

// `away`: the time that the offer of the core took. poll() is not included, because it may process what it finds.
bool Spin::preempted(Clock::duration away, Clock::time_point now) {
  const bool preempted = away > options_.preempted, again = std::exchange(was_preempted_, preempted) && preempted;
  if (preempted) away_ += away;
  if (again) not_before_ = now + options_.backoff * std::min<Clock::duration>(away, kLongestAway);
  return again;
}

}  // namespace shoal::runtime
