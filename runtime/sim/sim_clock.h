// Virtual time: it stands still while handlers run, and jumps to the next timer when none is ready.
//
// SimWorld owns and advances it. One thread.
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
  // Timers due at the same time fire in the order of creation. The clock outlives them.
  Timer after(Duration delay, std::function<void()> fn) override;

  std::size_t num_timers() const { return timers_.size(); }
  // Due time of the next timer; TimePoint::max() without timers.
  TimePoint next() const { return timers_.empty() ? TimePoint::max() : timers_.begin()->first.first; }
  // Advances to the next timer, which must exist, and fires it.
  void fire_next();
  // Advances to `time`, which must not pass the next timer.
  void advance_to(TimePoint time);

 private:
  using Key = std::pair<TimePoint, std::uint64_t>;
  class Entry;

  TimePoint now_{};
  std::uint64_t next_serial_ = 0;
  std::map<Key, std::function<void()>> timers_;
};

// The clock of one host's processes. It runs with the world's clock, but tests can shift its wall clock, leap its steady clock forward, or
// stop it like a suspended machine's. A stopped clock fires no timer.
//
// One thread. The world's clock outlives it; it outlives its timers.
class SimHostClock final : public Clock {
 public:
  explicit SimHostClock(SimClock& world) : world_(world) {}
  SimHostClock(const SimHostClock&) = delete;
  SimHostClock& operator=(const SimHostClock&) = delete;

  TimePoint now() const override { return stood_at_.value_or(world_.now() + ahead_); }
  std::int64_t unix_millis() const override { return world_.unix_millis() + wall_ahead_ms_; }
  Timer after(Duration delay, std::function<void()> fn) override;

  // Offset of the wall clock from the world's; negative: behind.
  void set_wall_ahead(std::chrono::milliseconds by) { wall_ahead_ms_ = by.count(); }
  // Moves the steady clock forward at once; timers that were due in between are due now.
  void leap(Duration by);
  // Stops the clock until go_on(), which continues from the same time.
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
  TimePoint waits_for_ = TimePoint::max();  // due time of next_, by this clock
  Timer next_;
};

}  // namespace shoal::runtime
