#include "runtime/device/fake/fake_stream.h"

CUstream_st::~CUstream_st() {
  {
    const std::lock_guard lock(mutex);
    over = true;
  }
  changed.notify_all();
  thread.join();
}

void CUstream_st::enqueue(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex);
    queue.push_back(std::move(work));
  }
  changed.notify_all();
}

void CUstream_st::synchronize() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return queue.empty() && !busy; });
}

void CUstream_st::run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return over || !queue.empty(); });
    if (queue.empty()) return;
    auto work = std::move(queue.front());
    queue.pop_front();
    busy = true;
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    busy = false;
    changed.notify_all();
  }
}
