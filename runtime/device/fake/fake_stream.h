// A stream as a thread, and an event as a count of records.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

// In the global namespace: the driver's handles are pointers to these.
struct CUstream_st {
  explicit CUstream_st(int of_device) : device(of_device), thread([this] { run(); }) {}
  // Waits for its work, as the driver's resources do.
  ~CUstream_st();

  void enqueue(std::function<void()> work);
  void synchronize();

  const int device;

 private:
  void run();

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false, over = false;
  std::thread thread;  // last, because it uses all other members
};

struct CUevent_st {
  // Shared with the streams on which it was recorded, which may outlive it.
  struct Records {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, passed = 0;
    std::chrono::steady_clock::time_point at;
  };
  const int device;
  const unsigned flags;
  const std::shared_ptr<Records> records = std::make_shared<Records>();
};

struct CUmod_st {
  int device;
};

struct CUctx_st {
  int device;
};
