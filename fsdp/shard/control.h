// The words that the ranks of one model share, behind the board in the model's control memory (runtime/shm/board.h).
//
// Each rank writes only its own words; everybody reads all. Every store that somebody may wait for is followed by a ring.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/core/id.h"
#include "runtime/shm/board.h"

namespace shoal::fsdp {

class Control {
 public:
  static constexpr int kMaxSlots = 4;  // units whose full gradients a rank may have in flight
  static constexpr int kMaxRanks = static_cast<int>(runtime::Board::kMaxMembers);
  static constexpr std::uint32_t kMaxParameters = 4096;  // of one unit

  // What a rank has in a gradient slot.
  struct Slot {
    std::atomic<std::uint32_t> unit;
    std::atomic<double> weight;             // of this rank's gradients in the mean, below 0: all ranks' are alike
    std::atomic<std::uint32_t> everywhere;  // reduced over all replicas, not only within the own one
    std::uint8_t present[kMaxParameters];   // which parameters have a gradient on this rank; written before `published`
  };

  struct alignas(64) RankWords {
    std::atomic<std::uint64_t> fingerprint;  // of the model, 0 until known
    std::atomic<std::uint64_t> entered;      // its rows of this version are final
    std::atomic<std::uint64_t> done;         // it reads this version no more
    std::atomic<std::uint64_t> published;    // how many units' gradients it has put into slots, above its attempt (reducer.h)
    std::atomic<std::uint64_t> consumed;     // how many units it has reduced, as owner of its rows, above its attempt
    std::atomic<std::uint64_t> waiting;      // while it waits: which of its waits this is, from 1; else 0
    std::atomic<std::uint64_t> looks;        // how often a wait of its has looked around in vain: it is alive
    std::atomic<std::uint64_t> stuck;        // another rank has proven that this one waits in vain
    std::atomic<std::uint64_t> joined;       // how often it has come to the end of its batches, to serve those who have some
    std::atomic<std::uint64_t> place;        // where its program is: for those who wait for it (encode_place)
    std::atomic<std::uint64_t> summed;       // how many sums over ranks it has brought its part for
    std::atomic<std::uint64_t> parts[2];     // of the last two of them, as the bits of a double; written before `summed`
    Slot slots[kMaxSlots];
  };

  static std::size_t bytes(int world_size) { return runtime::Board::kBytes + sizeof(RankWords) * static_cast<std::size_t>(world_size); }
  explicit Control(std::byte* memory) : board_(memory), ranks_(reinterpret_cast<RankWords*>(memory + runtime::Board::kBytes)) {}

  runtime::Board& board() { return board_; }
  RankWords& rank(int r) { return ranks_[r]; }
  const RankWords& rank(int r) const { return ranks_[r]; }

 private:
  runtime::Board board_;
  RankWords* ranks_;
};
static_assert(runtime::Board::kBytes % 64 == 0);

// Where a program is, in one word: what it does, with which unit, in which step.
enum class Doing : std::uint8_t { kStarting, kForward, kBackward, kBetween, kOptimizer, kLeft };
struct Place {
  Doing doing = Doing::kStarting;
  std::uint16_t unit = 0;
  std::uint32_t step = 0;
};
inline std::uint64_t encode_place(Place p) {
  return static_cast<std::uint64_t>(p.doing) << 56 | static_cast<std::uint64_t>(p.unit) << 32 | p.step;
}
inline Place decode_place(std::uint64_t w) {
  return {static_cast<Doing>(w >> 56), static_cast<std::uint16_t>(w >> 32), static_cast<std::uint32_t>(w)};
}

}  // namespace shoal::fsdp
