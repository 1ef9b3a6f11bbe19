#include "runtime/sim/sim_world.h"

#include "runtime/core/check.h"

namespace shoal::runtime {

SimWorld::SimWorld(const Options& options)
    : options_(options), random_(options.seed), fabric_(clock_, random_, trace_, Token::random(random_), options.network) {}

SimWorld::~SimWorld() = default;

bool SimWorld::run_until(const std::function<bool()>& ended, Duration limit) {
  const TimePoint end = clock_.now() + limit;
  std::uint64_t at_once = 0;
  while (!ended()) {
    SHOAL_CHECK(at_once++ < options_.max_events_at_once, "events repeat without end while no time passes");
    if (loop_.poll_one()) continue;
    if (clock_.next() > end) {
      clock_.advance_to(end);
      return false;
    }
    const TimePoint before = clock_.now();
    if (clock_.next() > before) at_once = 0;
    trace_.event();
    trace_.add(static_cast<std::uint64_t>(clock_.next().time_since_epoch().count()));
    clock_.fire_next();
  }
  return true;
}

void SimWorld::run_for(Duration time) {
  run_until([] { return false; }, time);
}

}  // namespace shoal::runtime
