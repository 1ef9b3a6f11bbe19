// What each process of a host has of the memory for objects: a word per process in a memory that the node owns and all of them map. Who
// wants more adds the words up; nobody is asked.
//
// Words are written by their process, and cleared by the node when it is gone. Nothing here is trusted with more than when to spill.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shoal::runtime {

class UsageBoard {
 public:
  static constexpr std::size_t kMaxMembers = 4095;
  static constexpr std::size_t kBytes = 16 * (kMaxMembers + 1);

  // `memory` has kBytes, zeroed by whoever made it, and outlives this.
  explicit UsageBoard(std::byte* memory) : words_(reinterpret_cast<Words*>(memory)) {}

  // The node's: how many bytes there are for all. 0: any number.
  void set_limit(std::uint64_t bytes) { words_[0].kept = bytes; }
  std::uint64_t limit() const { return words_[0].kept; }
  void clear(std::size_t member);

  void set_kept(std::size_t member, std::uint64_t bytes) { words_[1 + member].kept = bytes; }
  void add_spilled(std::size_t member, std::int64_t bytes) { words_[1 + member].spilled += static_cast<std::uint64_t>(bytes); }
  // The node's, as members come: those beyond are not looked at.
  void set_members(std::size_t members) { words_[0].spilled = members; }

  struct Usage {
    std::uint64_t kept = 0, spilled = 0;
  };
  Usage of(std::size_t member) const { return {words_[1 + member].kept, words_[1 + member].spilled}; }
  Usage total() const;

 private:
  struct Words {
    std::atomic<std::uint64_t> kept, spilled;
  };
  static_assert(sizeof(Words) == 16 && std::atomic<std::uint64_t>::is_always_lock_free);
  Words* words_;
};

}  // namespace shoal::runtime
