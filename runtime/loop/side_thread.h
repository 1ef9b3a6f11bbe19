// A thread that lives as long as a scope, for work that must not block the loop.
//
// The thread blocks all signals, which belong to the user's threads, as in LoopThread.
#pragma once

#include <functional>
#include <thread>

namespace shoal::runtime {

class SideThread {
 public:
  explicit SideThread(std::function<void()> run);
  // Joins the thread. If `run` is to end early, the owner makes it end first.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

 private:
  std::thread thread_;
};

}  // namespace shoal::runtime
