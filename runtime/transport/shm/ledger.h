// The ledger of a group: each rank's latest collective, the rank that it waits for, the ranks that have left, and the group's failure.
//
// Every rank writes its own lines and reads all lines, so a waiting rank can report the missing rank and its position. Divergence is found
// in two ways: entries of the same number differ, or ranks wait for each other in a cycle. The lines are in memory that the ranks share,
// behind a MembershipPage that records deaths and wakes sleepers. Each rank notifies that page after its stores.
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
#include "runtime/transport/communicator.h"

namespace shoal::runtime {

// A rank's description of a collective.
struct Entry {
  std::uint64_t sequence = 0;  // counts a rank's collectives, from 1
  Collective kind = Collective::kNone;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = -1;
  std::uint64_t bytes = 0;   // total size, equal on all ranks; 0 where sizes may differ
  std::uint64_t counts = 0;  // hash of the ranks' counts
  std::uint64_t step = 0;
  std::string label;
};
// "all_reduce 12 (sum of 4096 bytes of float32) 'clip', step 3"
std::string describe(const Entry& entry);
// Returns true if two ranks' entries of the same number match. Labels and steps may differ.
bool agree(const Entry& a, const Entry& b);

// A rank's state of waiting in the ledger.
struct Standing {
  std::uint64_t epoch = 0;  // number of the current wait; 0: the rank does not wait
  std::uint64_t beat = 0;   // number of checks during waits
  int waits_for = -1;
};
// Returns the cycle of ranks that wait for each other, starting the search at `from`. Each rank in it has checked at least twice since
// `before`, without change. Returns an empty vector if there is no proven cycle.
std::vector<int> waiting_circle(std::span<const Standing> before, std::span<const Standing> now, int from);

class Ledger {
 public:
  static constexpr std::size_t kLabelBytes = 64;
  static constexpr int kEntries = 4;  // a rank is at most two collectives ahead of another

  static std::size_t bytes(int world_size);
  // `memory` has bytes(world_size) bytes, initially zeroed, aligned to 64.
  Ledger(std::byte* memory, MembershipPage membership_page, int rank, int world_size);

  // ---- writes of this rank's lines ----
  void enter(const Entry& entry);
  // Records that the program waits for a rank (-1: unknown) in `what`. Called at each check of a slow wait.
  void block(int waits_for, const std::string& what);
  void unblock();
  void leave();

  // ---- reads of all lines ----
  // Returns nullopt if that rank has not entered it yet, or is more than kEntries - 1 entries ahead.
  std::optional<Entry> entry(int rank, std::uint64_t sequence) const;
  bool has_left(int rank) const;
  // A rank's position, for messages: "rank 1 waits for rank 0 in ...", "rank 1 is outside the communicator since ...".
  std::string describe(int rank) const;
  // Checks whether this rank waits in a cycle. Returns InvalidArgument/Diverged, with all waiting ranks, once that is proven.
  Result<void> check_circle(TimePoint now);

  // Records the group's failure and notifies the page. Later causes are ignored.
  void fail(const Error& cause);
  std::optional<Error> failure() const;

 private:
  static constexpr std::size_t kEntryWords = 5 + kLabelBytes / 8;
  static constexpr std::size_t kTextWords = 32;
  using Word = std::atomic<std::uint64_t>;
  struct Rank {
    alignas(64) Word epoch, beat, waits_for, left, latest;
    Word entries[kEntries][kEntryWords];
    Word text_version;
    Word text[kTextWords];
  };
  struct Failure {
    alignas(64) std::atomic<std::uint32_t> state;  // 0 none, 1 being written, 2 there
    std::uint16_t code;
    char reason[32], message[2000], hint[500];
  };
  Standing standing(int rank) const;
  std::string text(int rank) const;

  Failure* failure_;
  Rank* ranks_;
  MembershipPage membership_page_;
  const int rank_, world_size_;
  std::uint64_t epochs_ = 0;
  std::vector<Standing> before_;  // each rank's state at its last change; since_ has the times
  std::vector<TimePoint> since_;
};

}  // namespace shoal::runtime
