// The ledger of a group: each rank's latest collective, the rank that it waits for, the ranks that have left, and the group's failure.
//
// Every rank writes its own lines and reads all lines, so a waiting rank can report the missing rank and what that rank does. Divergence is
// found in two ways: entries with the same number differ, or ranks wait for each other in a cycle. The lines lie in shared memory, behind a
// MembershipPage that records deaths and wakes waiters. Each rank notifies that page after its stores.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/shm/membership_page.h"
#include "runtime/transport/entry.h"

namespace shoal::runtime {

// How a rank waits, as its line in the ledger shows it.
struct Standing {
  std::uint64_t wait_number = 0;  // number of its present wait; 0: the rank does not wait
  std::uint64_t beat = 0;         // number of checks that it has made while waiting
  int waits_for = -1;
};
// Returns ranks that wait for each other in a cycle, searched from rank `from`. Each of them has checked at least twice since `before`, and
// waits as it did then. Returns an empty vector if no cycle is proven.
std::vector<int> waiting_circle(std::span<const Standing> before, std::span<const Standing> now, int from);

class Ledger {
 public:
  static constexpr std::size_t kLabelBytes = 64;
  static constexpr int kEntries = 4;  // a rank is at most two collectives ahead of any other

  static std::size_t bytes(int world_size);
  // `memory` has bytes(world_size) bytes, initially zeroed, aligned to 64.
  Ledger(std::byte* memory, MembershipPage membership_page, int rank, int world_size);

  // ---- writes of this rank's lines ----
  void enter(const Entry& entry);
  // Records that the program waits for a rank (-1: unknown) in the operation `what`. Called at each check of a wait that has lasted for a
  // while.
  void block(int waits_for, const std::string& what);
  void unblock();
  void leave();

  // ---- reads of all lines ----
  // Returns the rank's collective with this number. Returns nullopt if the rank has not come to it, or is more than kEntries - 1
  // collectives ahead.
  std::optional<Entry> entry(int rank, std::uint64_t sequence) const;
  bool has_left(int rank) const;
  // Describes what a rank does, for errors: "rank 1 waits for rank 0 in ...", "rank 1 last came to ...".
  std::string describe(int rank) const;
  // Returns InvalidArgument/Diverged, which names all waiting ranks, once it is proven that this rank waits in a cycle.
  Result<void> check_circle(TimePoint now);

  // Records the group's failure and notifies the membership page. Only the first cause is recorded.
  void fail(const Error& cause);
  std::optional<Error> failure() const;

 private:
  static constexpr std::size_t kEntryWords = 5 + kLabelBytes / 8;
  static constexpr std::size_t kTextWords = 32;
  using Word = std::atomic<std::uint64_t>;
  struct Rank {
    alignas(64) Word wait_number, beat, waits_for, left, latest;
    Word entries[kEntries][kEntryWords];
    Word text_version;
    Word text[kTextWords];
  };
  struct Failure {
    alignas(64) std::atomic<std::uint32_t> state;  // 0: no failure, 1: the cause is being written, 2: it is written
    std::uint16_t code;
    char reason[32], message[2000], hint[500];
  };
  Standing standing(int rank) const;
  std::string text(int rank) const;

  Failure* failure_;
  Rank* ranks_;
  MembershipPage membership_page_;
  const int rank_, world_size_;
  std::uint64_t num_waits_ = 0;
  // By rank: its wait as this rank first found it, and in since_ the time of that.
  std::vector<Standing> before_;
  std::vector<TimePoint> since_;
};

}  // namespace shoal::runtime
