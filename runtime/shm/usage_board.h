// The usage board: how much object memory each process of a node uses. It has two words per process, in a memory that the node owns and all
// processes map. A process that needs more memory adds them up, without a message.
//
// Each process writes its own words; the node clears them when the process is gone. The numbers only decide when values are moved to files,
// so wrong numbers do little harm.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shoal::runtime {

class UsageBoard {
 public:
  static constexpr std::size_t kMaxMembers = 4095;
  static constexpr std::size_t kBytes = 16 * (kMaxMembers + 1);

  // `memory` has kBytes, initially zeroed, and outlives this object.
  explicit UsageBoard(std::byte* memory) : words_(reinterpret_cast<Words*>(memory)) {}

  // For the node: the limit for all processes in bytes. 0: no limit.
  void set_limit(std::uint64_t bytes) { words_[0].kept = bytes; }
  std::uint64_t limit() const { return words_[0].kept; }
  void clear(std::size_t member);

  void set_kept(std::size_t member, std::uint64_t bytes) { words_[1 + member].kept = bytes; }
  void add_spilled(std::size_t member, std::int64_t bytes) { words_[1 + member].spilled += static_cast<std::uint64_t>(bytes); }
  // For the node, when a process joins: total() adds up the processes [0, members).
  void set_members(std::size_t members) { words_[0].spilled = members; }

  struct Usage {
    std::uint64_t kept = 0, spilled = 0;
  };
  Usage usage(std::size_t member) const { return {words_[1 + member].kept, words_[1 + member].spilled}; }
  Usage total() const;

 private:
  struct Words {
    std::atomic<std::uint64_t> kept, spilled;
  };
  static_assert(sizeof(Words) == 16 && std::atomic<std::uint64_t>::is_always_lock_free);
  Words* words_;
};

}  // namespace shoal::runtime
