// A membership page: the first pages of a shared memory that several processes (members) use. It records which members are gone and why,
// and notify_all() wakes all threads that wait on it.
//
// Members write shared data behind the page, and then notify the page. The node reads deaths from pidfds, records them here, and notifies
// the page. So a rank that waits wakes at a peer's death at once, without a message and without a thread of its own. Trust: all members of
// a page are processes of one job; other jobs never map it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/core/result.h"
#include "runtime/shm/memory.h"

namespace shoal::runtime {

class MembershipPage {
 public:
  static constexpr std::uint32_t kMaxMembers = 64;
  static constexpr std::size_t kBytes = 20 << 10;  // offset of the members' own data

  // The page at the start of a mapping of at least kBytes, which outlives this object.
  explicit MembershipPage(std::byte* memory) : page_(reinterpret_cast<Page*>(memory)) {}

  // Marks a member as gone, with a description of the cause (cut to fit), and notifies all. Later causes are ignored.
  void mark_gone(std::uint32_t member, std::string_view cause);
  bool is_gone(std::uint32_t member) const;
  std::string cause(std::uint32_t member) const;
  // Returns the first member of [0, num_members) that is gone, or -1.
  int first_gone(std::uint32_t num_members) const;

  // Wakes all waiters. Call it after storing the data that they wait for.
  void notify_all();

  enum class WaitResult { kReady, kTimeout };
  // Returns kReady once ready() holds, and kTimeout after `limit`. It checks ready() `spins` times without a sleep, and then at each
  // notify_all().
  WaitResult wait_until(const std::function<bool()>& ready, std::chrono::nanoseconds limit, int spins);

 private:
  struct Member {
    std::atomic<std::uint32_t> gone;  // 0 no, 1 being written, 2 yes
    char cause[252];
  };
  struct Page {
    std::atomic<std::uint32_t> bell;     // counts calls of notify_all(); waiters sleep on this futex word
    std::atomic<std::uint32_t> waiters;  // number of sleepers: notify_all() needs no system call at 0
    char padding[1016];
    Member members[kMaxMembers];
  };
  static_assert(sizeof(Page) <= kBytes);
  Page* page_;
};

}  // namespace shoal::runtime
