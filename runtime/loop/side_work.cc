#include "runtime/loop/side_work.h"

#include <utility>

namespace shoal::runtime {

SideWork::~SideWork() {
  *alive_ = false;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  woken_.notify_one();
  thread_.reset();
}

void SideWork::run(std::function<void()> work, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(then)});
  }
  if (!thread_) thread_.emplace([this] { serve(); });
  woken_.notify_one();
}

void SideWork::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    woken_.wait(lock, [this] { return over_ || !jobs_.empty(); });
    if (over_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job.work();
    job.work = nullptr;
    loop_.post([alive = alive_, then = std::move(job.then)] {
      if (*alive) then();
    });
    lock.lock();
  }
}

}  // namespace shoal::runtime
