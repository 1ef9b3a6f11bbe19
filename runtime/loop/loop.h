// The event loop of a process: one thread at a time runs its handlers, and that thread owns all control state.
//
// Loop alone is for processes whose main thread is the loop (head, node, CLI) and for the simulated world, which polls
// it. A process with user code on its main thread adds a LoopThread (loop_thread.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace asio {
class io_context;
}

namespace shoal::runtime {

class Lookout;

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs fn later on the loop, in the order of posting. Any thread.
  void post(std::function<void()> fn);

  // Runs handlers until stop(). The loop stays alive without work.
  void run();
  enum class Idle {
    kSleep,
    kSpin,  // look for a moment whether something comes, then sleep: for a thread that waits for an answer, or gives many
  };
  // Runs one handler, or none when `limit` passes first.
  void run_one(std::chrono::nanoseconds limit, Idle idle = Idle::kSleep);
  // Runs what is ready now and returns how many handlers that were.
  std::size_t poll();
  // Runs one handler that is ready now; false when there is none.
  bool poll_one();
  // Makes run() return; later calls of run() return at once. Any thread.
  void stop();

  asio::io_context& io();  // for the files of runtime that speak Asio
  Lookout& lookout();      // likewise, for what speaks through memory

  // The descriptors that this process's connections hold. A child that was forked closes its copies, lest they keep a
  // connection open that its parent has left (D20).
  void track(int fd);
  void untrack(int fd);
  void close_tracked();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::runtime
