#include "runtime/loop/clock.h"

#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include "runtime/loop/loop.h"

namespace shoal::runtime {
namespace {

class RealTimer final : public Timer::Pending {
 public:
  RealTimer(asio::io_context& io, Duration delay, std::function<void()> fn) : timer_(io, delay), alive_(std::make_shared<bool>(true)) {
    // A handler that is already queued when the timer is destroyed still runs with success; `alive` is false then, so that it does nothing.
    timer_.async_wait([fn = std::move(fn), alive = alive_](std::error_code error) {
      if (!error && *alive) fn();
    });
  }
  ~RealTimer() override { *alive_ = false; }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<bool> alive_;
};

// A call without delay needs no kernel timer: it is posted behind the handlers that are already queued.
class Posted final : public Timer::Pending {
 public:
  Posted(asio::io_context& io, std::function<void()> fn) : alive_(std::make_shared<bool>(true)) {
    asio::post(io, [fn = std::move(fn), alive = alive_] {
      if (*alive) fn();
    });
  }
  ~Posted() override { *alive_ = false; }

 private:
  std::shared_ptr<bool> alive_;
};

class RealClock final : public Clock {
 public:
  explicit RealClock(Loop& loop) : loop_(loop) {}
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
  std::int64_t unix_millis() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  Timer after(Duration delay, std::function<void()> fn) override {
    if (delay <= Duration::zero()) return Timer(std::make_unique<Posted>(loop_.io(), std::move(fn)));
    return Timer(std::make_unique<RealTimer>(loop_.io(), delay, std::move(fn)));
  }

 private:
  Loop& loop_;
};

}  // namespace

std::unique_ptr<Clock> make_real_clock(Loop& loop) { return std::make_unique<RealClock>(loop); }

}  // namespace shoal::runtime
