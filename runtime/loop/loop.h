// The event loop of a process: one thread at a time runs its handlers, and that thread owns all control state.
//
// A Loop alone serves processes whose main thread runs it (head, node, CLI) and the simulated world, which polls it. A process with
// user code on its main thread adds a LoopThread (loop_thread.h).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>

namespace asio {
class io_context;
}

namespace shoal::runtime {

class BusyPoller;

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Queues fn to run on the loop, in the order of posting. Any thread.
  void post(std::function<void()> fn);

  // Runs handlers until stop(), also while there is no work.
  void run();
  enum class Idle {
    kSleep,
    kSpin,  // polls for a moment before the sleep: for a thread that waits for an answer, or sends many messages
  };
  // Runs one handler, or none if `limit` passes first.
  void run_one(std::chrono::nanoseconds limit, Idle idle = Idle::kSleep);
  // Runs the handlers that are ready now and returns their number.
  std::size_t poll();
  // Runs one handler that is ready now; returns false if there is none.
  bool poll_one();
  // Makes run() return; later calls of run() return at once. Any thread.
  void stop();

  asio::io_context& io();     // for the files of runtime that use Asio
  BusyPoller& busy_poller();  // for connections through shared memory

  // The descriptors of this process's connections. A forked child closes its copies, because they would keep a connection open after the
  // parent has closed it.
  void track(int fd);
  void untrack(int fd);
  void close_tracked();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal::runtime
