// Virtual time: it stands still while anything runs and jumps to the next timer when nothing does.
//
// Owned and moved by SimWorld alone. One thread.
#pragma once

#include <map>
#include <optional>
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

// What the processes of one host take for the time. It goes with the world's, until somebody jumps it: the wall clock anywhere, the steady
// one forward; or it stands still, as of a machine that is suspended: nothing of that host is due then.
//
// One thread. Outlived by the world's clock, outlives its timers.
class SimHostClock final : public Clock {
 public:
  explicit SimHostClock(SimClock& world) : world_(world) {}
  SimHostClock(const SimHostClock&) = delete;
  SimHostClock& operator=(const SimHostClock&) = delete;

  TimePoint now() const override { return stood_at_.value_or(world_.now() + ahead_); }
  std::int64_t unix_millis() const override { return world_.unix_millis() + wall_ahead_ms_; }
  Timer after(Duration delay, std::function<void()> fn) override;

  // How far its wall clock is before the world's; below 0: behind.
  void set_wall_ahead(std::chrono::milliseconds by) { wall_ahead_ms_ = by.count(); }
  // So much of its steady time has passed at once: what was to happen meanwhile is due now.
  void leap(Duration by);
  // Until go_on(), from where it stood.
  void stand_still();
  void go_on();
  bool stands() const { return stood_at_.has_value(); }

 private:
  using Key = std::pair<TimePoint, std::uint64_t>;
  class Entry;
  void wait_for_next();
  void fire_next();

  SimClock& world_;
  Duration ahead_{};
  std::int64_t wall_ahead_ms_ = 0;
  std::optional<TimePoint> stood_at_;
  std::uint64_t next_serial_ = 0;
  std::map<Key, std::function<void()>> timers_;
  TimePoint waits_for_ = TimePoint::max();  // when the world's timer below is due, by this clock
  Timer next_;
};

}  // namespace shoal::runtime
