// Reductions by collectives: first among the ranks of a replica's shards, then among those of the replicas, if the gradients are to reach
// these.
//
// Pure: it decides the order in which reductions continue and end, which is equal on all ranks. Groups of a unit that are reduced
// together are a batch, and hold their inputs as one. A reduction among replicas begins where the one among shards ends, and ends at the
// next advance(), so that it runs beside a backward.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace shoal::fsdp {

class Transfers {
 public:
  struct Step {
    enum class Kind : std::uint8_t { kReduceReplicas, kFinish } kind;
    int unit, group;
    bool operator==(const Step&) const = default;
  };
  using Steps = std::vector<Step>;

  // The transfers added from now on are a new batch.
  void begin_batch() { ++batch_; }
  // `replicated`: the sum among shards continues among replicas.
  void add(int unit, int group, bool replicated) { transfers_.push_back({unit, group, batch_, replicated}); }
  // The collective of the oldest added transfer of this group has begun.
  void begun(int unit, int group);

  // Ends the oldest transfers until at most `batches` batches hold their inputs.
  Steps advance(std::size_t batches);
  // Ends all transfers.
  Steps finish();

  // After an error: forgets the transfers whose collective has not begun.
  void drop_added();
  void clear() { transfers_.clear(); }

 private:
  struct Transfer {
    int unit, group;
    std::uint64_t batch;
    bool replicated;
    bool among_replicas = false;
    bool begun = false;
  };
  std::deque<Transfer> transfers_;  // oldest first
  std::uint64_t batch_ = 0;
};

}  // namespace shoal::fsdp
