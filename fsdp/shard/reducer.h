// Gradients to their owners, in place: each rank puts what others own into a slot that all can read, and every owner sums its rows from
// its peers' slots, in the order of ranks.
//
// A rank's n-th publication and its peers' n-th belong together. At most `slots` of them are in flight per rank; after that a rank waits
// until the owners have read the oldest. Nothing here waits or rings: the caller does, and serves reductions meanwhile.
//
// A backward pass that was left half-way is started over by every rank (start_over): the sequence of publications goes on at the next
// attempt's first number, which is above all numbers of the attempt before. So the ranks belong together again however far each had come,
// and a rank that has not started over sees that another has: what it had under way is dropped, and overtaken_by() says so.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout/layout.h"
#include "fsdp/shard/control.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

class Reducer {
 public:
  // What this rank brings and gets for one parameter.
  struct Gradient {
    const std::byte* whole = nullptr;  // unsharded, contiguous; null: none on this rank
    std::byte* own = nullptr;          // where this rank's shard of the mean goes, of the shards' dtype; null when it owns none
    bool accumulate = false;           // add to what is there
    DType dtype = DType::kFloat32;     // of `whole`
    // With replicas: this rank's sum of what was reduced within replicas only, not scaled, in fp32 (fp64 if gradients travel in that).
    // Such a reduction adds to it, if has_partial, and leaves `own` alone; the next one over all replicas takes it in.
    std::byte* partial = nullptr;
    bool has_partial = false;
  };
  struct How {
    double scale = 1;        // of the sum
    bool everywhere = true;  // over all replicas; false: within the own one, into `partial`
    double weight = -1;      // this rank's in a weighted mean (its gradients are multiplied by it already); below 0: `scale` counts
  };
  // One that is done: which parameters got a gradient from any rank.
  struct Reduced {
    std::uint32_t unit = 0;
    std::vector<bool> present;
  };

  // `slots`: the gradients' memory of slot_bytes(layouts, grid, num_slots), the same for all ranks. Layouts and control outlive the
  // reducer.
  Reducer(Control& control, int rank, Grid grid, std::vector<const Layout*> layouts, std::byte* slots, int num_slots);

  static std::size_t slot_bytes(const std::vector<const Layout*>& layouts, Grid grid, int num_slots);

  // Whether the next publication has a slot.
  bool has_slot() const;
  // Which rank's reduction it waits for, maybe this one's own, -1 when there is a slot.
  int missing_slot() const;
  // Copies what others own to the slot and, unless the sum can be made at once, what this rank owns to its place: the gradients are free
  // when this returns. `gradients` has one entry per parameter. The caller rings.
  void publish(std::uint32_t unit, std::span<const Gradient> gradients, How how);

  // Sums the oldest publication if every rank has made it. True when it did; the caller rings. InvalidArgument when the ranks' do not
  // belong together.
  Result<bool> serve();
  // Forgets what is under way on this rank: nothing is read from or written to its gradients any more. The caller rings.
  void start_over();
  // A rank that has started over while this one had reductions under way, -1 when none has: this one must start over, too.
  int overtaken_by() const { return overtaken_by_; }
  // What serve() finished since the last call.
  std::vector<Reduced> take_reduced() { return std::exchange(reduced_, {}); }

  // A unit that another rank has published and this one has not, -1 when there is none.
  int awaited_unit() const;

  std::size_t num_pending() const { return pending_.size(); }
  std::uint64_t last_published() const { return next_ - 1; }  // its sequence
  // Where a rank's publication lies: what it says about it, and the gradients.
  auto& words(int rank, std::uint64_t sequence) const { return control_.rank(rank).slots[sequence % num_slots_]; }
  std::byte* slot(int rank, std::uint64_t sequence) const {
    return slots_ + (static_cast<std::size_t>(rank) * num_slots_ + sequence % num_slots_) * stride_;
  }
  // The rank whose publication the oldest pending one waits for, -1 when none.
  int missing_publication() const;

 private:
  // Where the slices lie that a rank owns itself: still in its gradient, as they are in `own`, or in its slot like everybody's.
  enum class Where : std::uint8_t { kNowhere, kGradient, kOwn, kSlot };
  struct Pending {
    std::uint64_t sequence;
    std::uint32_t unit;
    How how;
    std::vector<Gradient> gradients;  // `whole` only while it is reduced inside publish()
    std::vector<Where> where;         // this rank's own slices of each
  };

  Piece own_piece(const Placed& p) const { return piece_of(p, grid_.shards(), grid_.shard_of(rank_)); }
  void bring(const Placed& p, const Gradient& g, How how, std::byte* out) const;
  Where keep(const Placed& p, const Gradient& g, std::byte* out) const;
  // Whether this rank's sum has what rank r brought.
  bool sums(int r, How how) const { return how.everywhere || grid_.replica_of(r) == grid_.replica_of(rank_); }
  void sum(const Pending& pending, std::size_t parameter);
  double scale_of(const Pending& pending) const;
  void finish_oldest();
  // Whether every rank has published it: not once one has started over.
  bool all_published(std::uint64_t sequence) const;
  int ahead() const;  // the first rank that is at a later attempt, or -1
  Result<void> check_units(const Pending& pending) const;

  Control& control_;
  const int rank_;
  const Grid grid_;
  const std::vector<const Layout*> layouts_;
  std::byte* const slots_;
  const std::size_t stride_;
  const std::uint64_t num_slots_;
  std::uint64_t first_ = 0;     // sequence of this attempt's first publication
  std::uint64_t next_ = 0;      // and of the next one
  std::uint64_t left_off_ = 0;  // where the attempt before ended: owners may be reading what it published
  int overtaken_by_ = -1;
  std::deque<Pending> pending_;
  std::optional<std::string> unwanted_;  // a parameter that another rank has a gradient of, and this one nowhere to put its own
  std::vector<Reduced> reduced_;
};

}  // namespace shoal::fsdp
