// Reduces gradients to their owners in place: each rank copies the rows of other owners into a slot that all ranks of its host read. Every
// owner sums its rows from these slots, and from the sums of other hosts (remote_sums.h). The additions follow a tree over ranks
// (kernels/kernels.h), so the bits do not depend on the hosts.
//
// The n-th publications of all ranks belong together. A rank has at most `slots` of them in flight, then waits until the owners have read
// the oldest. The reducer neither waits for peers nor wakes them (MembershipPage::notify_all): its caller does both, and serves reductions
// while it waits.
//
// Every rank starts an interrupted backward pass over (start_over). Publications continue at the next attempt's first number, above all
// numbers of the attempt before, so all ranks match again from any position. A rank that has not started over detects that another has: it
// drops its pending reductions, and overtaken_by() names the other rank.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/layout/layout.h"
#include "fsdp/protocol/control.h"
#include "fsdp/protocol/remote_sums.h"
#include "fsdp/protocol/slots.h"
#include "runtime/core/result.h"

namespace shoal::fsdp {

class Reducer {
 public:
  // This rank's gradient of one parameter, and the destination of its reduction.
  struct Gradient {
    const std::byte* whole = nullptr;  // unsharded, contiguous; null: none on this rank
    std::byte* own = nullptr;          // destination: this rank's shard of the mean, in the shards' dtype; null when it owns none
    bool accumulate = false;           // true: the result is added to the destination
    DType dtype = DType::kFloat32;     // dtype of `whole`
    // With replicas: this rank's unscaled sum of the reductions within its replica, in fp32 (fp64 if gradients travel in that). A reduction
    // within the replica adds to it if has_partial, else sets it, and leaves `own` alone. The next reduction over all replicas includes it.
    std::byte* partial = nullptr;
    bool has_partial = false;
  };
  struct How {
    double scale = 1;        // factor by which the sum is multiplied
    bool everywhere = true;  // true: over all replicas; false: within this rank's replica, into `partial`
    double weight = -1;      // this rank's weight in a weighted mean, already applied to its gradients; below 0: `scale` applies
  };
  // A finished reduction: the parameters with a gradient from any rank.
  struct Reduced {
    std::uint32_t unit = 0;
    std::vector<bool> present;
  };

  // The order of additions: along the tree over ranks, or one rank after the other. kRanks needs one host with up to 31 ranks.
  enum class SumOrder { kTree, kRanks };
  // `slots` is the memory of this host's slots. `remote`: for ranks on several hosts, else null. All arguments outlive the reducer.
  Reducer(Control& control, int rank, Grid grid, std::vector<const Layout*> layouts, const Slots& slots, RemoteSums* remote,
          SumOrder order = SumOrder::kTree);

  // True when a slot is free for the next publication.
  bool has_slot() const;
  // The rank whose reductions the next publication waits for, possibly this one; -1 when a slot is free.
  int missing_slot() const;
  // Copies other owners' rows to the slot. Sums at once if every rank has published; else copies this rank's rows out of the gradients. The
  // gradients may be freed on return. `gradients` has one entry per parameter. The caller then notifies the page.
  void publish(std::uint32_t unit, std::span<const Gradient> gradients, How how);

  // True when serve() would make progress.
  bool can_serve() const { return !pending_.empty() && (ready(pending_.front().sequence) || ahead() >= 0); }
  // Sums the oldest publication if every rank has published it. Returns true after progress; the caller then notifies the page. Returns
  // InvalidArgument if the ranks' publications do not match.
  Result<bool> serve();
  // Begins the next attempt, and drops pending reductions: their gradients are no longer read or written. The caller then notifies the
  // page.
  void start_over();
  // A rank that has started over while this one had pending reductions, so this one must start over, too; -1: none.
  int overtaken_by() const { return overtaken_by_; }
  // The reductions finished since the last call.
  std::vector<Reduced> take_reduced() { return std::exchange(reduced_, {}); }

  // True when the oldest publication waits only for data on their way between hosts.
  bool waits_for_link() const {
    return remote_ != nullptr && !pending_.empty() && all_published(pending_.front().sequence) && !ready(pending_.front().sequence);
  }
  // A unit that another rank has published and this one has not; -1: none.
  int awaited_unit() const;

  std::uint64_t first_number() const { return first_; }  // this attempt's first number; Reductions counts sums from it, too
  int ahead() const;                                     // the first rank that is at a later attempt; -1: none

  std::size_t num_pending() const { return pending_.size(); }
  // The rank whose publication, or sum for this rank, the oldest pending reduction waits for; -1: none.
  int missing_publication() const;

 private:
  // Location of a rank's own slices: still in its gradient, at their destination `own`, or in its slot.
  enum class Where : std::uint8_t { kNowhere, kGradient, kOwn, kSlot };
  struct Pending {
    std::uint64_t sequence;
    std::uint32_t unit;
    How how;
    std::vector<Gradient> gradients;  // `whole` is set only during publish()
    std::vector<Where> where;         // by parameter: this rank's own slices
  };

  // The control words of a rank's publication with this number.
  Control::Slot& words(int rank, std::uint64_t sequence) const { return control_.rank(rank).slots[sequence % slots_.num_slots()]; }
  // The gradients of one parameter in this rank's publication.
  std::byte* own_slot(std::uint64_t sequence, const Placed& p) const { return slots_.at(slots_.leaf_of(rank_), sequence, p); }
  // The place of a leaf's gradients in the tree of additions. With kRanks, places 0, 1, 2, 4, 8, .. make the tree a chain.
  int place_of(const Slots::Leaf& leaf) const {
    if (order_ == SumOrder::kTree) return leaf.place;
    return leaf.ranks.begin == 0 ? 0 : 1 << (leaf.ranks.begin - 1);
  }
  Piece own_piece(const Placed& p) const { return piece_of(p, grid_.shards(), grid_.shard_of(rank_)); }
  void bring(const Placed& p, const Gradient& g, How how, std::byte* out) const;
  Where keep(const Placed& p, const Gradient& g, std::byte* out) const;
  // True when this rank sums the gradients of rank r.
  bool sums(int r, How how) const { return how.everywhere || grid_.replica_of(r) == grid_.replica_of(rank_); }
  // True when a rank of the leaf has published a gradient of this parameter that this rank sums.
  bool has_gradient(const Slots::Leaf& leaf, const Pending& pending, std::size_t parameter) const;
  void sum(const Pending& pending, std::size_t parameter);
  double scale_of(const Pending& pending) const;
  void finish_oldest();
  // True when every rank has published its publication with this number, and none has started over.
  bool all_published(std::uint64_t sequence) const;
  // True when everything that belongs to a publication has arrived, and its slots are not read for other hosts any more.
  bool ready(std::uint64_t sequence) const;
  Result<void> check_units(const Pending& pending) const;

  Control& control_;
  const int rank_;
  const Grid grid_;
  const std::vector<const Layout*> layouts_;
  const Slots& slots_;
  RemoteSums* const remote_;
  const SumOrder order_;
  std::uint64_t first_ = 0;     // number of this attempt's first publication
  std::uint64_t next_ = 0;      // number of the next publication
  std::uint64_t left_off_ = 0;  // end of the previous attempt: owners may still read its publications
  int overtaken_by_ = -1;
  std::deque<Pending> pending_;
  std::optional<std::string> unwanted_;  // a parameter that another rank has a gradient of, while this one has no destination
  std::vector<Reduced> reduced_;
};

}  // namespace shoal::fsdp
