// This rank's part in the reductions among the ranks: gradients to their owners, and sums of single numbers.
//
// The Reducer numbers publications and sums gradients; this class waits for slots and for the other ranks. The numbers of publications
// and of sums begin anew with each attempt, so a result never mixes attempts. One thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fsdp/protocol/reducer.h"
#include "fsdp/shard/peers.h"
#include "fsdp/unit/sharded_unit.h"

namespace shoal::fsdp {

class Reductions {
 public:
  // All references outlive this object.
  Reductions(Control& control, int rank, int world_size, const Units& units, Peers& peers, Reducer& reducer)
      : control_(control), rank_(rank), world_size_(world_size), units_(units), peers_(peers), reducer_(reducer) {}

  // Sends a unit's gradients to their owners; they may be freed on return. Waits for a slot.
  Result<void> publish(std::size_t unit, std::span<const Reducer::Gradient> gradients, Reducer::How how);
  // Waits until this rank's publications are reduced. Only then may a unit be published again, because its next reduction adds to this
  // one's result. Returns InvalidArgument/Diverged if another rank has started over and this one has not.
  Result<void> wait();
  // As wait(), at the end of a backward pass that has published anything; otherwise it returns at once.
  Result<void> end_pass();
  // Units reduced since the last call.
  std::vector<Reducer::Reduced> take() { return reducer_.take_reduced(); }
  // The sum of every rank's part, added in the order of ranks: the same bits on each. Every rank requests the same sums in the same order.
  // Errors: as wait().
  Result<double> sum_over_ranks(double part);
  // Drops all pending gradients: the next attempt begins.
  void start_over();

 private:
  Error started_over(int rank) const;

  Control& control_;
  const int rank_;
  const int world_size_;
  const Units& units_;
  Peers& peers_;
  Reducer& reducer_;
  bool published_any_ = false;  // true if this backward pass has published a unit
  std::uint64_t num_sums_ = 0;  // number of sums, counted from the attempt's first number (reducer.h)
};

}  // namespace shoal::fsdp
