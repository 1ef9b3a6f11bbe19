// Engine memory for ranks that share none. Each has its own arenas, control words and gradient slots, laid out as if all ranks used them; a
// Communicator brings the other ranks' parts. Gate, reducer and model are the same as on one host.
//
// A unit is gathered once per version, and its gradients are sent when they are published. Both are collectives, so every rank must run the
// same modules in the same order. Not thread-safe: it belongs to the model's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/protocol/control.h"
#include "fsdp/protocol/reducer.h"
#include "fsdp/shard/sharded_unit.h"
#include "runtime/transport/communicator.h"

namespace shoal::fsdp {

class Exchange {
 public:
  // `control` and the units outlive the exchange.
  Exchange(std::shared_ptr<runtime::Communicator> communicator, Control& control, int rank, Grid grid);

  // Copies this rank's gate words to those of the other ranks, which do not write this memory.
  void follow_gate();
  // Sets the other ranks' reducer words from this rank's, after all ranks have published or this one has started over.
  void follow_reducer();

  // Fetches the parts of a unit's wholes that the other ranks of the replica own. The first call compares the ranks' models, too.
  Result<void> gather(ShardedUnit& unit, std::size_t unit_index, std::uint64_t fingerprint, std::uint32_t step);
  // Sends this rank's latest publication to the ranks that sum it, and receives the publications that this rank sums. Afterwards every rank
  // has published.
  Result<void> gradients(const ShardedUnit& unit, const Reducer& reducer, Reducer::How how, std::uint32_t step);

 private:
  Result<void> compare(std::uint64_t fingerprint);
  runtime::Call call(const char* op, const ShardedUnit& unit, std::uint32_t step) const;

  const std::shared_ptr<runtime::Communicator> communicator_;
  Control& control_;
  const int rank_;
  const Grid grid_;
  bool compared_ = false;
};

}  // namespace shoal::fsdp
