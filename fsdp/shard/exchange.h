// Ranks that share no memory: each has arenas, control words and gradient slots of its own, laid out as if all ranks used them, and what
// the others would have written there comes through a Communicator. So the gate, the reducer and the model are the same as on one host.
//
// A unit is gathered once per version, a unit's gradients go out when they are published; both are collectives, so every rank must run
// the same modules in the same order. Not thread-safe: who uses the model uses this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fsdp/shard/control.h"
#include "fsdp/shard/reducer.h"
#include "fsdp/shard/sharded_unit.h"
#include "runtime/transport/communicator.h"

namespace shoal::fsdp {

class Exchange {
 public:
  // `control` and the units outlive it.
  Exchange(std::shared_ptr<runtime::Communicator> communicator, Control& control, int rank, Grid grid);

  // The other ranks' words that this rank's gate looks at follow its own: nobody else reads or writes this memory.
  void follow_gate();
  // The same for the reducer, after it has started over.
  void follow_reducer();

  // The parts of a unit's wholes that the other ranks of the replica own. The first call compares the ranks' models, too.
  Result<void> gather(ShardedUnit& unit, std::size_t unit_index, std::uint64_t fingerprint, std::uint32_t step);
  // What this rank has just published, to those who sum it, and what they have published to here. Afterwards everybody's is there.
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
