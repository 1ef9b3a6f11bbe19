// Virtual time: it stands still while anything runs and jumps to the next timer when nothing does.
//
// Owned and moved by SimWorld alone. One thread.
#pragma once

#include <map>
#include <utility>

#include "runtime/loop/clock.h"

namespace shoal::runtime {

class SimClock final : public Clock {
 public:
  SimClock() = default;
  SimClock(const SimClock&) = delete;
  SimClock& operator=(const SimClock&) = delete;

  TimePoint now() const override { return now_; }
  std::int64_t unix_millis() const override;
  // Timers that are due at the same time fire in the order in which they were made. The clock outlives them.
  Timer after(Duration delay, std::function<void()> fn) override;

  std::size_t num_timers() const { return timers_.size(); }
  // When the next timer is due; TimePoint::max() when there is none.
  TimePoint next() const { return timers_.empty() ? TimePoint::max() : timers_.begin()->first.first; }
  // Moves to the next timer, which must exist, and fires it.
  void fire_next();
  // Moves to `time`, which lies before no timer that is due.
  void advance_to(TimePoint time);

 private:
  using Key = std::pair<TimePoint, std::uint64_t>;
  class Entry;

  TimePoint now_{};
  std::uint64_t next_serial_ = 0;
  std::map<Key, std::function<void()>> timers_;
};

}  // namespace shoal::runtime
