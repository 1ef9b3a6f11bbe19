// CPU time of one participant of a simulated world, apart from the others on the same thread. The participant uses the metered clock and
// network. The cost of its sends in the fabric is counted as its own.
#pragma once

#include <memory>

#include "runtime/loop/clock.h"
#include "runtime/net/connection.h"

namespace shoal::simulation {

class Meter {
 public:
  double seconds() const { return seconds_; }
  // Runs `fn` and adds its CPU time to the sum. A call inside of another adds nothing, because the outer one has its time.
  template <class F>
  void count(F&& fn) {
    const Running running(*this);
    fn();
  }

 private:
  class Running {
   public:
    explicit Running(Meter& meter) : meter_(meter), outermost_(!meter.running_), began_(outermost_ ? cpu_seconds() : 0) {
      meter.running_ = true;
    }
    ~Running() {
      if (!outermost_) return;
      meter_.running_ = false;
      meter_.seconds_ += cpu_seconds() - began_;
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    Meter& meter_;
    const bool outermost_;
    const double began_;
  };
  static double cpu_seconds();  // CPU time of the calling thread

  double seconds_ = 0;
  bool running_ = false;
};

// `meter` must outlive the returned objects.
std::unique_ptr<runtime::Clock> metered(Meter& meter, runtime::Clock& clock);
std::unique_ptr<runtime::Network> metered(Meter& meter, runtime::Network& network);

}  // namespace shoal::simulation
