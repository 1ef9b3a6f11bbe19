// Work that blocks (a disk, many pages of memory), done by one thread beside the loop, in order; what follows from it runs on the loop.
//
// The thread begins with the first work. Loop thread only.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/loop/loop.h"
#include "runtime/loop/side_thread.h"

namespace shoal::runtime {

class SideWork {
 public:
  // The loop outlives this.
  explicit SideWork(Loop& loop) : loop_(loop) {}
  // Waits for what is in hand; what comes after it is dropped, and no `then` is called any more.
  ~SideWork();

  // `then` runs on the loop, never from inside this call. What the two share has to survive whoever asked.
  void run(std::function<void()> work, std::function<void()> then);

 private:
  struct Job {
    std::function<void()> work, then;
  };
  void serve();

  Loop& loop_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::deque<Job> jobs_;
  bool over_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<SideThread> thread_;
};

}  // namespace shoal::runtime
