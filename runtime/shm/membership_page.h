// A membership page: the first pages of a shared memory that several processes (members) use. It records which members are gone and why,
// and has a bell that wakes all waiters.
//
// Members write shared data behind the page and ring. Only the node learns of deaths (from pidfds); it records the death here and rings.
// So a rank that sleeps in a wait learns of a dead peer at once, without a message and without a thread. Trust: all members of a page are
// processes of one job; other jobs never map it.
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

  // The board at the start of a mapping of at least kBytes, which outlives this object.
  explicit MembershipPage(std::byte* memory) : page_(reinterpret_cast<Page*>(memory)) {}

  // Marks a member as gone, with a description of the cause (cut to fit), and rings. Later causes are ignored.
  void mark_gone(std::uint32_t member, std::string_view cause);
  bool is_gone(std::uint32_t member) const;
  std::string cause(std::uint32_t member) const;
  // Returns the first member of [0, num_members) that is gone, or -1.
  int first_gone(std::uint32_t num_members) const;

  // Wakes all waiters. Call it after storing the data that they wait for.
  void notify_all();

  enum class WaitResult { kDone, kTimeout };
  // Returns kDone once done() holds, checked at each ring, and kTimeout after `limit`. First spins for `spins` checks.
  WaitResult wait_until(const std::function<bool()>& done, std::chrono::nanoseconds limit, int spins);

 private:
  struct Member {
    std::atomic<std::uint32_t> gone;  // 0 no, 1 being written, 2 yes
    char cause[252];
  };
  struct Page {
    std::atomic<std::uint32_t> bell;     // counts rings: the futex word
    std::atomic<std::uint32_t> waiters;  // number of sleepers: notify_all() needs no system call at 0
    char padding[1016];
    Member members[kMaxMembers];
  };
  static_assert(sizeof(Page) <= kBytes);
  Page* page_;
};

}  // namespace shoal::runtime
