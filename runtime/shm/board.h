// A board: the first pages of a shared memory that several processes use together. On it stands who belongs, who is
// gone and why, and a bell that everybody who waits can hear.
//
// The members write what they share behind the board and ring; the node, which alone learns of deaths (D20: from the
// kernel, by pidfd), writes the death here and rings. So a rank that sleeps in a wait hears of a dead peer at once,
// without a message and without a thread. Trust: members of a board are processes of one job; a board is never shown to
// another job.
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

class Board {
 public:
  static constexpr std::uint32_t kMaxMembers = 64;
  static constexpr std::size_t kBytes = 20 << 10;  // what follows in the memory starts here

  // The board at the start of a mapping of at least kBytes. The mapping outlives it.
  explicit Board(std::byte* memory) : page_(reinterpret_cast<Page*>(memory)) {}

  // Marks a member as gone, with the cause in words (cut to fit). The first cause counts. Rings.
  void mark_gone(std::uint32_t member, std::string_view cause);
  bool is_gone(std::uint32_t member) const;
  std::string cause(std::uint32_t member) const;
  // The first member of [0, num_members) that is gone, or -1.
  int first_gone(std::uint32_t num_members) const;

  // Wakes everybody who waits. To be called after whatever they wait for was stored.
  void ring();

  enum class Heard { kDone, kTimeout };
  // Returns kDone once done() holds, after looking again at each ring, and kTimeout after `limit`. Spins briefly first:
  // `spins` looks.
  Heard listen(const std::function<bool()>& done, std::chrono::nanoseconds limit, int spins);

 private:
  struct Member {
    std::atomic<std::uint32_t> gone;  // 0 no, 1 being written, 2 yes
    char cause[252];
  };
  struct Page {
    std::atomic<std::uint32_t> bell;     // counts rings: the futex word
    std::atomic<std::uint32_t> waiters;  // so that ringing costs no system call while nobody sleeps
    char padding[1016];
    Member members[kMaxMembers];
  };
  static_assert(sizeof(Page) <= kBytes);
  Page* page_;
};

}  // namespace shoal::runtime
