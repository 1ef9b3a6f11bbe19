// The ranks' control words of one model, behind the membership page in the model's control memory (runtime/shm/membership_page.h).
//
// Each rank writes only its own words; every rank reads all. A rank notifies the page after each store that another rank may wait for.
// Every host has control words of all ranks: a HostLink keeps those of ranks on other hosts up to date (link/host_link.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/core/id.h"
#include "runtime/shm/membership_page.h"

namespace shoal::fsdp {

class Control {
 public:
  static constexpr int kMaxSlots = 4;  // gradient slots: units whose full gradients a rank may have in flight
  static constexpr int kMaxRanks = static_cast<int>(runtime::MembershipPage::kMaxMembers);
  static constexpr std::uint32_t kMaxParameters = 4096;  // per unit

  // A rank's publication in one slot, without the bytes of its gradients.
  struct Slot {
    std::atomic<std::uint32_t> unit;
    std::atomic<double> weight;             // weight of this rank's gradients in the mean; below 0: all ranks weigh the same
    std::atomic<std::uint32_t> everywhere;  // true: reduced over all replicas; false: within the rank's replica
    std::uint8_t present[kMaxParameters];   // parameters with a gradient on this rank; written before `published`
  };

  struct alignas(64) RankWords {
    std::atomic<std::uint64_t> fingerprint;  // hash of the model, 0 until set
    std::atomic<std::uint64_t> entered;      // version for which this rank's rows are final
    std::atomic<std::uint64_t> left;         // version that this rank no longer reads
    std::atomic<std::uint64_t> published;    // number of the next publication: each attempt counts on from its first number (reducer.h)
    std::atomic<std::uint64_t> consumed;     // number of the next publication that the rank reduces as owner of its rows
    std::atomic<std::uint64_t> waiting;      // number of the rank's current wait, from 1; 0 when it does not wait
    std::atomic<std::uint64_t> checks;       // number of fruitless checks in waits: shows that the rank is alive
    std::atomic<std::uint64_t> stuck;        // 1 once another rank has proven that this rank's wait cannot end
    std::atomic<std::uint64_t> joined;       // how often the rank ran out of batches and began to serve the others
    std::atomic<std::uint64_t> place;        // position of the rank's program, for ranks that wait for it (encode_place)
    std::atomic<std::uint64_t> summed;       // sums over ranks that have the rank's part, counted from its attempt's first number
    std::atomic<std::uint64_t> parts[2];     // the rank's parts of the last two sums, as bits of a double; written before `summed`
    std::atomic<std::uint64_t> recorded;     // 1 + the optimizer step that the rank has recorded; 0: not protected (ShardedModel::commit)
    std::atomic<std::uint64_t> linked;       // 1 while the rank's HostLink runs; always 0 for ranks of other hosts
    Slot slots[kMaxSlots];
  };

  static std::size_t bytes(int world_size, std::size_t num_units) {
    const auto world = static_cast<std::size_t>(world_size);
    return runtime::MembershipPage::kBytes + sizeof(RankWords) * world + sizeof(std::atomic<std::uint64_t>) * world * num_units;
  }
  Control(std::byte* memory, int world_size, std::size_t num_units)
      : membership_page_(memory),
        ranks_(reinterpret_cast<RankWords*>(memory + runtime::MembershipPage::kBytes)),
        rows_(reinterpret_cast<std::atomic<std::uint64_t>*>(ranks_ + world_size)),
        num_units_(num_units) {}

  runtime::MembershipPage& membership_page() { return membership_page_; }
  RankWords& rank(int r) { return ranks_[r]; }
  const RankWords& rank(int r) const { return ranks_[r]; }
  // The version of the rows of a unit that have arrived on this host, for a rank of another host.
  std::atomic<std::uint64_t>& rows(int rank, std::size_t unit) { return rows_[static_cast<std::size_t>(rank) * num_units_ + unit]; }
  const std::atomic<std::uint64_t>& rows(int rank, std::size_t unit) const {
    return rows_[static_cast<std::size_t>(rank) * num_units_ + unit];
  }

 private:
  runtime::MembershipPage membership_page_;
  RankWords* ranks_;
  std::atomic<std::uint64_t>* rows_;
  std::size_t num_units_;
};
static_assert(runtime::MembershipPage::kBytes % 64 == 0);

// A program's position in one word: activity, unit, step.
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
