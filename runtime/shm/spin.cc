#include "runtime/shm/spin.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>

namespace shoal::runtime {

namespace {
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

void Spin::begin() {
  begun_ = Clock::now();
  offered_ = {};
}

bool Spin::found() {
  credit_ = std::min(credit_ + 1, options_.max_credit);
  return true;
}

bool Spin::goes_on() {
  const auto now = Clock::now();
  if (now - begun_ < options_.alone) return true;
  if (offered_ == Clock::time_point()) {
    offered_ = now;
    switches_at_offer_ = switches();
  } else if (const auto away = now - looked_; away > options_.lost && switches() != switches_at_offer_) {
    not_before_ = now + options_.rest * away;
    return false;
  }
  if (now - begun_ < options_.limit) {
    ::sched_yield();
    looked_ = now;
    return true;
  }
  credit_ = std::max(credit_ - 1, 0);
  return false;
}

}  // namespace shoal::runtime
