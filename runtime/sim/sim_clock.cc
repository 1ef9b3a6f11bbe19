#include "runtime/sim/sim_clock.h"

#include "runtime/core/check.h"

namespace shoal::runtime {

namespace {
constexpr std::int64_t kUnixStart = 1'700'000'000'000;
}  // namespace

class SimClock::Entry final : public Timer::Pending {
 public:
  Entry(SimClock& clock, Key key) : clock_(clock), key_(key) {}
  ~Entry() override { clock_.timers_.erase(key_); }

 private:
  SimClock& clock_;
  const Key key_;
};

std::int64_t SimClock::unix_millis() const {
  return kUnixStart + std::chrono::duration_cast<std::chrono::milliseconds>(now_.time_since_epoch()).count();
}

Timer SimClock::after(Duration delay, std::function<void()> fn) {
  if (delay < Duration::zero()) delay = Duration::zero();
  const TimePoint due = delay > TimePoint::max() - now_ ? TimePoint::max() : now_ + delay;
  const Key key{due, next_serial_++};
  timers_.emplace(key, std::move(fn));
  return Timer(std::make_unique<Entry>(*this, key));
}

void SimClock::fire_next() {
  SHOAL_CHECK(!timers_.empty(), "the clock has no timer to fire");
  const auto node = timers_.extract(timers_.begin());  // the callback may destroy its Timer
  now_ = node.key().first;
  node.mapped()();
}

void SimClock::advance_to(TimePoint time) {
  SHOAL_CHECK(time >= now_ && time <= next(), "time must not go back or pass over a timer");
  now_ = time;
}

class SimHostClock::Entry final : public Timer::Pending {
 public:
  Entry(SimHostClock& clock, Key key) : clock_(clock), key_(key) {}
  ~Entry() override { clock_.timers_.erase(key_); }

 private:
  SimHostClock& clock_;
  const Key key_;
};

Timer SimHostClock::after(Duration delay, std::function<void()> fn) {
  if (delay < Duration::zero()) delay = Duration::zero();
  const TimePoint due = delay > TimePoint::max() - now() ? TimePoint::max() : now() + delay;
  const Key key{due, next_serial_++};
  timers_.emplace(key, std::move(fn));
  wait_for_next();
  return Timer(std::make_unique<Entry>(*this, key));
}

// Sets a timer of the world's clock for the first timer here. If that one is cancelled, the world's timer fires early without effect.
void SimHostClock::wait_for_next() {
  if (stands() || timers_.empty()) return;
  const TimePoint due = timers_.begin()->first.first;
  if (due >= waits_for_) return;
  waits_for_ = due;
  next_ = world_.after(due - now(), [this] { fire_next(); });
}

void SimHostClock::fire_next() {
  next_ = {};
  waits_for_ = TimePoint::max();
  std::function<void()> fn;
  if (!timers_.empty() && timers_.begin()->first.first <= now()) fn = std::move(timers_.extract(timers_.begin()).mapped());
  wait_for_next();  // before fn(), which may destroy this object
  if (fn) fn();
}

void SimHostClock::leap(Duration by) {
  SHOAL_CHECK(by >= Duration::zero(), "a steady clock must not go back");
  if (stands()) {
    *stood_at_ += by;
    return;
  }
  ahead_ += by;
  waits_for_ = TimePoint::max();
  next_ = {};
  wait_for_next();
}

void SimHostClock::stand_still() {
  if (stands()) return;
  stood_at_ = now();
  waits_for_ = TimePoint::max();
  next_ = {};
}

void SimHostClock::go_on() {
  if (!stands()) return;
  ahead_ = *stood_at_ - world_.now();
  stood_at_.reset();
  wait_for_next();
}

}  // namespace shoal::runtime
