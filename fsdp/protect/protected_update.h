// An optimizer's step whose every moment survives a kill of the process (step_record.h has the states and the order of stores).
//
//   if (update.begin(k)) {                 // false: an interrupted call has recorded step k
//     update.add(item, shard, counter);    // per parameter
//     update.record();                     // the rank's gradients of step k are final
//   }
//   ..                                     // wait until every rank has recorded step k (ShardedModel::commit)
//   update.run(num_threads);
//
// One thread; run() starts others.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fsdp/protect/step_record.h"

namespace shoal::fsdp {

using Memories = std::vector<std::span<std::byte>>;  // mappings of the units' arenas

// For tests: called in each of these moments of a chunk, so that a process can end there.
enum class Moment { kBeforeUndo, kInUndo, kAfterUndo, kInChunk, kAfterChunk };
using OnMoment = std::function<void(Moment, std::uint64_t position)>;

class ProtectedUpdate {
 public:
  ProtectedUpdate(StepRecord record, Memories arenas) : record_(record), arenas_(std::move(arenas)) {}

  // Begins to record step `step`, the one after the last finished step. False: it is recorded already, and is only to be run.
  Result<bool> begin(std::uint64_t step);
  // Adds the update of a shard; `item` has its kernel, options, step and dtypes. `counter` receives the step.
  Result<void> add(StepRecord::Item item, const Shard& shard, const float* counter);
  void record();
  // Makes the recorded update, or what is left of it, on at most `num_threads` threads. No effect if it is finished.
  void run(int num_threads, const OnMoment& on_moment = {});

  const StepRecord& step_record() const { return record_; }

 private:
  void divide(int num_threads);
  void run_lane(std::size_t lane, const OnMoment& on_moment) const;

  StepRecord record_;
  Memories arenas_;
  std::uint64_t step_ = 0, position_ = 0;
  std::uint32_t num_items_ = 0;
};

}  // namespace shoal::fsdp
