// Time behind an interface: real on a loop, virtual in the simulated world. Code outside runtime/ reads clocks only through it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace shoal::runtime {

class Loop;

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A call that is to be made later. Its destruction cancels the call. Timer() is empty. Loop thread only.
class Timer {
 public:
  class Pending {
   public:
    virtual ~Pending() = default;
  };
  Timer() = default;
  explicit Timer(std::unique_ptr<Pending> pending) : pending_(std::move(pending)) {}

 private:
  std::unique_ptr<Pending> pending_;
};

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;             // monotonic
  virtual std::int64_t unix_millis() const = 0;  // wall clock for display, never for decisions
  // Calls fn on the loop after `delay`, unless the Timer is destroyed first.
  [[nodiscard]] virtual Timer after(Duration delay, std::function<void()> fn) = 0;
};

std::unique_ptr<Clock> make_real_clock(Loop& loop);

}  // namespace shoal::runtime
