// Takes the place of a node in tests: has memories by name, and records the deaths of their members.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/shm/membership_page.h"
#include "runtime/shm/memory.h"

namespace shoal::runtime {

// A place where the threads of a test meet, again and again. A std::barrier spins, on cores that the ranks' threads need.
class Meeting {
 public:
  explicit Meeting(int num_threads) : num_threads_(num_threads) {}
  void meet() {
    std::unique_lock lock(mutex_);
    const auto round = round_;
    if (++num_here_ == num_threads_) {
      num_here_ = 0;
      ++round_;
      all_here_.notify_all();
    }
    all_here_.wait(lock, [&] { return round_ != round; });
  }

 private:
  const int num_threads_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  int num_here_ = 0;
  std::uint64_t round_ = 0;
};

class TestHost {
 public:
  // Opens a memory, as SharedMemory::open does.
  Result<std::shared_ptr<Mapping>> open(const std::string& name, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    auto it = memories_.find(name);
    if (it == memories_.end()) it = memories_.emplace(name, make_memory(name, bytes).value()).first;
    SHOAL_TRY(Mapping mapping, map(it->second, bytes, Access::kReadWrite));
    return std::make_shared<Mapping>(std::move(mapping));
  }
  // Records the end of a member's process on the membership page of a memory that is open.
  void mark_gone(const std::string& name, int member, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    const Mapping mapping = map(memories_.at(name), MembershipPage::kBytes, Access::kReadWrite).value();
    MembershipPage(mapping.data()).mark_gone(static_cast<std::uint32_t>(member), cause);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Fd> memories_;
};

}  // namespace shoal::runtime
