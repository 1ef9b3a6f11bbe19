// A pointer to an object that may end before its users do, such as a session that a Python object still refers to. In a forked child the
// object's copy cannot work, so that call() does nothing there.
#pragma once

#include <atomic>
#include <mutex>
#include <shared_mutex>

#include "runtime/core/owner_process.h"

namespace shoal::actors {

template <class T>
class Outlived {
 public:
  explicit Outlived(T& target) : target_(&target) {}

  // Calls use(target) and returns true. Returns false without a call once the target ends, and in a forked child, where a thread that does
  // not exist may hold the mutex.
  template <class Use>
  bool call(Use&& use) {
    if (forked()) return false;
    const std::shared_lock lock(mutex_);
    if (target_ == nullptr) return false;
    use(*target_);
    return true;
  }
  bool forked() const { return process_.forked(); }
  // True as soon as end() waits for calls. A long call polls this, and then returns.
  bool ending() const { return ending_; }

  // To be called before the target ends. Waits for calls of the target that are under way; later ones do nothing.
  void end() {
    ending_ = true;
    const std::lock_guard lock(mutex_);
    target_ = nullptr;
  }

 private:
  const OwnerProcess process_;
  std::atomic<bool> ending_ = false;
  std::shared_mutex mutex_;  // held by end() alone, and by calls together
  T* target_;                // null after end()
};

}  // namespace shoal::actors
