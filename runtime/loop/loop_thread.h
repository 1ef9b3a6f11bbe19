// A loop for a process whose main thread belongs to the user.
//
// A background thread serves the loop while no other thread does. A thread that has no other work serves it itself: a caller that waits for
// a future, a worker between calls. To serve the loop is to own it and to run its handlers. So a call and its answer need no hand-over
// between threads, unless user code runs for longer than `grace`. (A hand-over takes about 36 us on a small virtual machine.) The
// background thread never takes the GIL and blocks all signals.
//
// Threads that take the loop repeatedly without serving it (own(), or wait() past its deadline) run some handlers whenever none have run
// for `grace`.
//
// If several threads wait, one leader serves the loop for all: after each handler it checks the others' conditions and wakes those that
// hold. When it leaves, another waiter leads.
//
// Threads: every member may be called from any thread, but not from a handler of the loop.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/core/check.h"
#include "runtime/loop/loop.h"

namespace shoal::runtime {

class LoopThread {
 public:
  struct Options {
    // Time that user code may run before the background thread takes the loop over.
    std::chrono::microseconds grace{1000};
    // Interval at which wait() calls `interrupted`.
    std::chrono::milliseconds interrupt_period{50};
  };

  explicit LoopThread(Loop& loop) : LoopThread(loop, Options()) {}
  LoopThread(Loop& loop, Options options);
  ~LoopThread();  // joins the background thread; no thread may be in wait()
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // Runs fn while this thread owns the loop, so that no handler runs meanwhile. fn must not block.
  template <class F>
  auto own(F&& fn) {
    const Ownership owned(*this);
    return fn();
  }

  enum class Woken { kReady, kDeadline, kInterrupted };
  // Serves the loop until ready() returns true. Only a thread that owns the loop calls ready(): this one, or the leader. So ready() may
  // read the state of the loop's handlers. It is not called again after it returned true. `interrupted`, if not empty, is called without
  // ownership every interrupt_period, so that the caller can check for signals.
  Woken wait(const std::function<bool()>& ready, std::chrono::steady_clock::time_point deadline,
             const std::function<bool()>& interrupted = {});

  // For a thread that is about to sleep on something else that a handler sets (a descriptor). If no thread serves the loop, the background
  // thread does so now instead of after `grace`.
  void hand_over();

  static constexpr std::chrono::steady_clock::time_point kForever = std::chrono::steady_clock::time_point::max();

 private:
  class Ownership {
   public:
    explicit Ownership(LoopThread& host) : host_(host) { host_.acquire(); }
    ~Ownership() { host_.release(); }

   private:
    LoopThread& host_;
  };

  struct Waiter;

  void acquire();
  void release();
  // Called by a waiter that owns the loop while another one leads. Sleeps until the leader wakes it, or `until`. Owns the loop
  // afterwards unless it is done.
  void follow(Waiter& self, std::chrono::steady_clock::time_point until);
  // Owner only: wakes the followers whose condition holds.
  void notify_followers();
  // Owner only: gives up leading and makes a follower lead.
  void step_down(const Waiter& self);
  // Owner only: runs a bounded number of ready handlers.
  void poll_some();
  void background();

  Loop& loop_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable owner_changed_;  // for threads that want the loop
  std::condition_variable wake_background_;
  bool owned_ = false;          // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  bool parked_ = false;         // the background thread sleeps until a release; guarded by mutex_
  bool summoned_ = false;       // the background thread takes the loop as soon as it is free; guarded by mutex_
  std::uint64_t releases_ = 0;  // by threads other than the background thread; guarded by mutex_
  std::chrono::steady_clock::time_point served_ = std::chrono::steady_clock::now();  // owner only; time of the last handler run
  Waiter* leader_ = nullptr;                                                         // the waiter that serves in wait(); owner only
  std::vector<Waiter*> followers_;                                                   // owner only
  std::atomic<int> waits_{0};                                                        // threads in wait(), which serve the loop
  std::atomic<int> wanted_{0};  // threads that wait in acquire(); the thread that serves the loop gives way to them
  std::thread thread_;
};

}  // namespace shoal::runtime
