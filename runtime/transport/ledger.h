// The ledger of a group: which collective each rank has come to, for whom it waits, who has left, and why the group can go on no more.
//
// Every rank writes its own lines and reads all: whoever waits can say who has not come, and where that rank is instead. Ranks that
// diverge are found out in two ways: entries of one number that differ, and a circle of ranks that wait for each other. The words lie in
// memory that the ranks share, behind a Board that tells of deaths and wakes who sleeps: whoever stores something rings.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/result.h"
#include "runtime/loop/clock.h"
#include "runtime/shm/board.h"
#include "runtime/transport/dtype.h"

namespace shoal::runtime {

// A collective, as its rank describes it.
enum class Collective : std::uint8_t { kNone, kAllGather, kReduceScatter, kAllReduce, kBroadcast, kAllToAll, kBarrier };
struct Entry {
  std::uint64_t sequence = 0;  // counts a rank's collectives, from 1
  Collective kind = Collective::kNone;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = -1;
  std::uint64_t bytes = 0;   // of the whole, as all ranks must say it; 0 where they may differ
  std::uint64_t counts = 0;  // of the ranks' parts, as a number
  std::uint64_t step = 0;
  std::string label;
};
// "all_reduce 12 (sum of 4096 bytes of float32) 'clip', step 3"
std::string describe(const Entry& entry);
// Whether two ranks' entries of one number belong together: labels and steps are for people, and may differ.
bool agree(const Entry& a, const Entry& b);

// One rank, as the ledger has it.
struct Standing {
  std::uint64_t epoch = 0;  // of its waits; 0: its program does not wait
  std::uint64_t beat = 0;   // counts the looks of a wait
  int waits_for = -1;
};
// The ranks that wait for each other, seen from one of them: each has looked again, twice, since `before`, and nothing changed. Empty
// when nothing is proven.
std::vector<int> waiting_circle(std::span<const Standing> before, std::span<const Standing> now, int from);

class Ledger {
 public:
  static constexpr std::size_t kLabelBytes = 64;
  static constexpr int kEntries = 4;  // a rank is at most two collectives ahead of another

  static std::size_t bytes(int world_size);
  // `memory` is zeroed at first, of bytes(world_size), aligned to 64.
  Ledger(std::byte* memory, Board board, int rank, int world_size);

  // ---- this rank's lines ----
  void enter(const Entry& entry);
  // Its program waits, for a rank (-1: unknown), in `what`. Called at every look of a wait that has become slow.
  void block(int waits_for, const std::string& what);
  void unblock();
  void leave();

  // ---- everybody's ----
  // Nothing when that rank is not there yet, or long past it.
  std::optional<Entry> entry(int rank, std::uint64_t sequence) const;
  bool has_left(int rank) const;
  // Where a rank is, in words: "rank 1 waits for rank 0 in ...", "rank 1 is outside the communicator since ...".
  std::string describe(int rank) const;
  // Looks whether this rank waits in a circle. InvalidArgument/Diverged, naming all who wait, once that is proven.
  Result<void> check_circle(TimePoint now);

  // The group ends: the first cause counts. Rings.
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
  Board board_;
  const int rank_, world_size_;
  std::uint64_t epochs_ = 0;
  std::vector<Standing> before_;  // as they were when they last changed, and when that was seen
  std::vector<TimePoint> since_;
};

}  // namespace shoal::runtime
