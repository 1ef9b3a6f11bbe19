#include "runtime/loop/loop_thread.h"

#include <pthread.h>

#include <csignal>
#include <optional>

namespace shoal::runtime {

namespace {
constexpr int kPollsBeforeParking = 50;
constexpr int kHandlersAtOnce = 64;  // handlers that poll_some() runs at most
}  // namespace

struct LoopThread::Waiter {
  enum class Wakeup { kNothing, kReady, kLead };
  const std::function<bool()>& ready;
  std::condition_variable woken = {};
  Wakeup reported = Wakeup::kNothing;  // guarded by mutex_ while this waiter follows a leader
};

LoopThread::LoopThread(Loop& loop, Options options) : loop_(loop), options_(options) {
  // Signals belong to the user's threads: a signal handler that ran here would not interrupt their waits.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { background(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

LoopThread::~LoopThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wanted_.fetch_add(1);
  }
  wake_background_.notify_all();
  loop_.post([] {});  // wakes the loop from its wait for events
  thread_.join();
}

void LoopThread::acquire() {
  std::unique_lock lock(mutex_);
  if (!owned_) {
    owned_ = true;
    return;
  }
  wanted_.fetch_add(1);
  loop_.post([] {});  // a handler, after which the serving thread checks wanted_
  owner_changed_.wait(lock, [this] { return !owned_; });
  wanted_.fetch_sub(1);
  owned_ = true;
}

void LoopThread::poll_some() {
  for (int i = 0; i < kHandlersAtOnce && loop_.poll_one(); ++i) {
  }
  served_ = std::chrono::steady_clock::now();
}

void LoopThread::release() {
  // Threads that take the loop often keep the background thread away, so they run the ready handlers themselves.
  if (std::chrono::steady_clock::now() - served_ > options_.grace) poll_some();
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    SHOAL_CHECK(owned_, "release by a thread that does not own the loop");
    owned_ = false;
    ++releases_;
    wake = parked_ || (summoned_ && waits_.load() == 0);
  }
  if (wanted_.load() > 0) owner_changed_.notify_one();
  if (wake) wake_background_.notify_one();
}

void LoopThread::hand_over() {
  {
    const std::lock_guard lock(mutex_);
    summoned_ = true;
  }
  wake_background_.notify_one();
}

LoopThread::Woken LoopThread::wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline,
                                   const std::function<bool()>& interrupted) {
  using std::chrono::steady_clock;
  auto next_check = interrupted ? steady_clock::now() + options_.interrupt_period : kForever;
  struct Counted {
    explicit Counted(std::atomic<int>& c) : count(c) { count.fetch_add(1); }
    ~Counted() { count.fetch_sub(1); }
    std::atomic<int>& count;
  };
  std::optional<Counted> counted(waits_);
  Waiter self{ready};
  const auto leave = [&](Woken how) {
    step_down(self);
    counted.reset();
    release();
    return how;
  };
  acquire();
  while (true) {
    if (ready()) return leave(Woken::kReady);
    const auto now = steady_clock::now();
    if (now >= deadline) {
      poll_some();
      return leave(ready() ? Woken::kReady : Woken::kDeadline);
    }
    if (now >= next_check) {
      step_down(self);  // interrupted() may be slow, or call wait() itself
      release();
      if (interrupted()) return Woken::kInterrupted;
      next_check = steady_clock::now() + options_.interrupt_period;
      acquire();
      continue;
    }
    if (leader_ != nullptr && leader_ != &self) {
      follow(self, std::min(deadline, next_check));
      if (self.reported == Waiter::Wakeup::kReady) return Woken::kReady;  // then no list refers to `self` any more
      continue;
    }
    leader_ = &self;
    notify_followers();
    if (wanted_.load() > 0) {  // gives way: acquire() then waits behind the thread that was notified, so that every thread gets its turn
      release();
      std::this_thread::yield();
      acquire();
      continue;
    }
    const auto until = std::min(deadline, next_check);
    loop_.run_one(until == kForever ? std::chrono::hours(1) : std::chrono::nanoseconds(until - now), Loop::Idle::kSpin);
    served_ = now;  // a handler ran at this time, or a moment later
  }
}

void LoopThread::follow(Waiter& self, std::chrono::steady_clock::time_point until) {
  using Wakeup = Waiter::Wakeup;
  self.reported = Wakeup::kNothing;
  followers_.push_back(&self);
  release();
  {
    std::unique_lock lock(mutex_);
    const auto is_reported = [&] { return self.reported != Wakeup::kNothing; };
    if (until == kForever) {
      self.woken.wait(lock, is_reported);
    } else {
      self.woken.wait_until(lock, until, is_reported);
    }
    if (self.reported == Wakeup::kReady) return;
  }
  acquire();
  std::erase(followers_, &self);
  if (self.reported == Wakeup::kReady) release();  // reported before acquire(): a waiter that is done must not own the loop
}

void LoopThread::notify_followers() {
  std::erase_if(followers_, [this](Waiter* w) {
    if (!w->ready()) return false;
    const std::lock_guard lock(mutex_);
    w->reported = Waiter::Wakeup::kReady;
    w->woken.notify_one();
    return true;
  });
}

void LoopThread::step_down(const Waiter& self) {
  if (leader_ == &self) leader_ = nullptr;
  if (leader_ != nullptr || followers_.empty()) return;
  Waiter* const next = followers_.front();
  followers_.erase(followers_.begin());
  const std::lock_guard lock(mutex_);
  next->reported = Waiter::Wakeup::kLead;
  next->woken.notify_one();
}

void LoopThread::background() {
  std::unique_lock lock(mutex_);
  std::uint64_t seen = releases_;
  int quiet_polls = 0;
  const auto to_take_now = [this] { return stopping_ || (summoned_ && !owned_ && waits_.load() == 0 && wanted_.load() == 0); };
  while (!stopping_) {
    // While other threads serve the loop in turns, this thread checks again every `grace`. If one of them keeps it for long (a worker
    // waiting for its next call), this thread sleeps until the loop is released.
    if (owned_ || wanted_.load() > 0 || (seen != releases_ && !to_take_now())) {
      const bool changed = seen != releases_;
      seen = releases_;
      quiet_polls = changed ? 0 : quiet_polls + 1;
      if (quiet_polls > kPollsBeforeParking && owned_) {
        parked_ = true;
        wake_background_.wait(lock, [&] { return seen != releases_ || to_take_now(); });
        parked_ = false;
      } else {
        wake_background_.wait_for(lock, options_.grace, to_take_now);
      }
      continue;
    }
    owned_ = true;
    summoned_ = false;
    lock.unlock();
    while (wanted_.load() == 0) loop_.run_one(std::chrono::hours(1));
    served_ = std::chrono::steady_clock::now();
    lock.lock();
    owned_ = false;
    seen = releases_;
    quiet_polls = 0;
    owner_changed_.notify_one();
    // Gives a thread that waits for the loop time to take it.
    wake_background_.wait_for(lock, options_.grace, to_take_now);
  }
}

}  // namespace shoal::runtime
