// Opens a dead rank's record: the shards of its parameters, the states of its optimizer, and their step. Any process of the job on that
// host can do so, a survivor as well as a new rank.
//
// A recovery first makes sure that the dead ranks' processes have ended. Each host opens the records of its ranks. committed_step()
// decides from the words of all ranks, and settle() finishes a step that counts. Then arrays() are the state of exactly that step. When a
// process ends during settle(), its successor calls settle() again.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "fsdp/protect/step_record.h"
#include "runtime/core/fd.h"
#include "runtime/shm/memory.h"

namespace shoal::fsdp {

struct RecordWords {
  std::uint64_t recorded = 0, begun = 0, finished = 0;  // step numbers
};
RecordWords words_of(const StepRecord& record);

// Returns the last step that counts. A step counts if a rank has begun its update, or if every rank has recorded it. `all`: `ranks` are all
// ranks of the mesh. False: some records are lost, and a step that no rank has begun runs again.
std::uint64_t committed_step(std::span<const RecordWords> ranks, bool all);

class AdoptedShard {
 public:
  // Returns a memory of this host's node that exists already.
  using FindMemory = std::function<Result<Fd>(const std::string& key)>;
  struct Array {
    std::string name;  // "param", "step" (number of updates, one fp32), or a state's
    std::uint32_t unit, parameter;
    DType dtype;
    Piece piece;  // the part of the whole parameter that `data` holds, run after run
    std::byte* data;
  };

  // Opens a rank's record, and the arenas of its units. NotFound: the node has no such record. DataLoss: it is damaged.
  static Result<AdoptedShard> open(const std::string& key, const FindMemory& find);

  int rank() const { return static_cast<int>(record().header().rank); }
  Grid grid() const;
  RecordWords words() const;
  // The names of the memories that are mapped: the record and the units' arenas.
  const std::vector<std::string>& keys() const { return keys_; }

  // Brings the shard to the committed step: finishes the rank's update where that is due. Unavailable/StillAlive: the rank's process has
  // not ended. DataLoss: the record cannot yield that step, because a load of its states was interrupted, or because it is of another step.
  Result<void> settle(std::uint64_t committed, int num_threads = 1);
  // The shard's arrays; valid while this object lives. After settle() they are of that step.
  std::vector<Array> arrays() const;

 private:
  AdoptedShard() = default;
  StepRecord record() const { return *record_; }

  std::vector<std::string> keys_;
  runtime::Mapping record_memory_;
  std::vector<runtime::Mapping> arena_memories_;
  std::vector<std::span<std::byte>> arenas_;
  std::optional<StepRecord> record_;
};

}  // namespace shoal::fsdp
