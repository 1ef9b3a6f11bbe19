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
  SHOAL_CHECK(!timers_.empty(), "no timer to fire");
  const auto node = timers_.extract(timers_.begin());  // what it calls may destroy its Timer
  now_ = node.key().first;
  node.mapped()();
}

void SimClock::advance_to(TimePoint time) {
  SHOAL_CHECK(time >= now_ && time <= next(), "time neither goes back nor passes over a timer");
  now_ = time;
}

}  // namespace shoal::runtime
