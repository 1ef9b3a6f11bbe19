// Blocking work (a disk, many pages of memory), done in order by one thread beside the loop; its completion runs on the loop.
//
// The first run() starts the thread. Loop thread only.
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
  // `loop` outlives this object.
  explicit SideWork(Loop& loop) : loop_(loop) {}
  // Waits for the job in progress. Queued jobs are dropped, and no `then` runs any more.
  ~SideWork();

  // `then` runs on the loop, never inside this call. State that both functions use must live until they have run.
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
