// A loop for a process whose main thread belongs to the user.
//
// A background thread serves the loop while nobody else does. A thread with nothing else to do serves it itself: a
// caller blocked on a future, a worker between calls. So a call and its answer cross no thread, and each hand-over
// (about 36 us on a small virtual machine) is paid only when user code runs for longer than `grace`. The background
// thread never takes the GIL and blocks all signals. A thread that takes the loop again and again without serving it
// (own, or wait with a deadline that has passed) runs some handlers whenever none have run for `grace`.
//
// Of several threads that wait, one serves for all: it asks what the others wait for after each handler, and wakes those that have it. When
// it leaves, another one serves.
//
// Threads: every member may be called from any thread except from a handler of the loop.
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
    // How long user code may run before the background thread takes the loop over.
    std::chrono::microseconds grace{1000};
    // How often a wait asks `interrupted`.
    std::chrono::milliseconds interrupt_period{50};
  };

  explicit LoopThread(Loop& loop) : LoopThread(loop, Options()) {}
  LoopThread(Loop& loop, Options options);
  ~LoopThread();  // joins; nobody may wait any more
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  // Runs fn while this thread owns the loop: no handler runs meanwhile. fn must not block.
  template <class F>
  auto own(F&& fn) {
    const Ownership owned(*this);
    return fn();
  }

  enum class Woken { kDone, kDeadline, kInterrupted };
  // Serves the loop until done() holds; done is only asked by a thread that owns the loop, this one or another that serves for it, so it
  // may look at the loop's state; and not again once it held. `interrupted` is asked without ownership every interrupt_period (the caller's
  // chance to look at signals); empty: never.
  Woken wait(const std::function<bool()>& done, std::chrono::steady_clock::time_point deadline,
             const std::function<bool()>& interrupted = {});

  // For a thread that goes to sleep on something else which a handler will set (a descriptor): if nobody else serves the loop the
  // background thread does so now, not after `grace`.
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
  // Of a waiter that owns the loop, while another one serves for it: until that has something for it, or `until`. Owns the loop afterwards
  // unless it is done.
  void follow(Waiter& self, std::chrono::steady_clock::time_point until);
  // Owner only: those whose time has come go.
  void tell_followers();
  // Owner only, which serves no longer: another one may.
  void step_down(const Waiter& self);
  // Some of what is ready. Owner only.
  void poll_some();
  void background();

  Loop& loop_;
  const Options options_;

  std::mutex mutex_;
  std::condition_variable owner_changed_;  // for threads that want the loop
  std::condition_variable wake_background_;
  bool owned_ = false;          // guarded by mutex_
  bool stopping_ = false;       // guarded by mutex_
  bool parked_ = false;         // background sleeps until a release; guarded by mutex_
  bool summoned_ = false;       // background is to take the loop as soon as it is free; guarded by mutex_
  std::uint64_t releases_ = 0;  // by other threads than the background one; guarded by mutex_
  std::chrono::steady_clock::time_point served_ = std::chrono::steady_clock::now();  // belongs to the loop's owner
  Waiter* leader_ = nullptr;                                                         // who serves in wait(); belongs to the loop's owner
  std::vector<Waiter*> followers_;                                                   // likewise
  std::atomic<int> waits_{0};                                                        // threads in wait(): they serve the loop
  std::atomic<int> wanted_{0};  // threads waiting in acquire(); whoever serves gives way
  std::thread thread_;
};

}  // namespace shoal::runtime
