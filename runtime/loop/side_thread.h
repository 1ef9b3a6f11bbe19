// A second thread beside main for as long as a scope lasts: for work that blocks and may not block the loop.
//
// It blocks all signals: they belong to the user's threads, as in LoopThread.
#pragma once

#include <functional>
#include <thread>

namespace shoal::runtime {

class SideThread {
 public:
  explicit SideThread(std::function<void()> run);
  // Joins. What makes `run` end early, if anything, is the owner's to arrange before.
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

 private:
  std::thread thread_;
};

}  // namespace shoal::runtime
