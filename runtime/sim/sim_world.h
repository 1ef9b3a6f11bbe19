// A simulated world: one thread, a virtual clock, a seeded Random and a network of hosts, for whole clusters of the real code.
//
// The same seed gives the same run: the same events at the same times, the same draws. Code in it must not use Asio's sockets or timers,
// threads, or the real clock. The world owns these parts and outlives all objects that use them.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "runtime/loop/loop.h"
#include "runtime/sim/sim_clock.h"
#include "runtime/sim/sim_network.h"
#include "runtime/sim/trace.h"

namespace shoal::runtime {

class SimWorld {
 public:
  struct Options {
    std::uint64_t seed = 1;
    SimNetworkOptions network{};
    std::uint64_t max_events_at_once = 1 << 20;  // without time passing; more count as an endless loop
  };

  explicit SimWorld(const Options& options);
  ~SimWorld();

  // Runs until ended(), checked after each event, returns true; returns false if `limit` passes first. Time advances only when no
  // handler is ready.
  bool run_until(const std::function<bool()>& ended, Duration limit);
  void run_for(Duration time);

  Loop& loop() { return loop_; }
  SimClock& clock() { return clock_; }
  // The clock of a host's processes. It keeps its state when they end.
  SimHostClock& clock_of(const std::string& host) { return host_clocks_.try_emplace(host, clock_).first->second; }
  Random& random() { return random_; }
  SimFabric& fabric() { return fabric_; }

  // Hash over every timer that fired and every frame that arrived: host, kind, method, contents, time.
  std::uint64_t trace_hash() const { return trace_.hash(); }
  std::uint64_t num_events() const { return trace_.num_events(); }
  std::uint64_t last_draw() const { return random_.last(); }

 private:
  const Options options_;
  Loop loop_;
  SimClock clock_;
  std::map<std::string, SimHostClock> host_clocks_;
  Trace trace_;
  TracedRandom random_;
  SimFabric fabric_;
};

}  // namespace shoal::runtime
