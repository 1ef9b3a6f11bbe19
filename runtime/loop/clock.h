// Time behind an interface: real on a loop, or virtual in the simulated world. Nothing outside runtime/ reads a clock
// another way.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

namespace shoal::runtime {

class Loop;

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A pending call. Destroying it cancels the call; a default-made one is empty. Belongs to the loop's thread.
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
  virtual std::int64_t unix_millis() const = 0;  // for people, never for decisions
  // Calls fn on the loop after `delay`, unless the Timer is destroyed before.
  [[nodiscard]] virtual Timer after(Duration delay, std::function<void()> fn) = 0;
};

std::unique_ptr<Clock> make_real_clock(Loop& loop);

}  // namespace shoal::runtime
