// Takes the place of a node in tests: has memories by name, and records the deaths of their members.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/shm/membership_page.h"
#include "runtime/shm/memory.h"

namespace shoal::runtime {

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
