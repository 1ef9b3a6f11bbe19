// State of a hand-written step beside a rank's rows: the gradients of every parameter, and AdamW's moments.
//
// Gradients lie in one block at offsets from the graph (graph/offsets.h); units that are updated in backward share bytes. Offloaded moments
// lie in a file, and in the same block from their fetch to their offload. All memory is allocated in make(): a step allocates none. A
// unit's rows belong to the lane that runs its node, as the graph's edges define.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/graph/step_graph.h"
#include "fsdp/kernels/adam.h"
#include "fsdp/runner/state_file.h"
#include "fsdp/shard/sharded_model.h"

namespace shoal::fsdp {

class StepRows {
 public:
  // `graph` is runnable and has these units. Returns Unimplemented if the graph updates or clips parameters of another dtype than fp32,
  // InvalidArgument if it offloads but no folder is given. Other errors: as StateFile::make.
  static Result<StepRows> make(const Units& units, const StepGraph& graph, const std::string& offload_folder);

  void begin_step();
  // By parameter, for a reduction of this unit: the memory that gets the sum, and whether the sum is added there. `whole`: this rank's
  // gradients.
  std::vector<Reducer::Gradient> to_reduce(std::size_t unit, const std::vector<const std::byte*>& whole) const;
  void reduced(const Reducer::Reduced& reduced);
  // This rank's part of the squared norm of all units' gradients.
  double squares() const;
  void scale(float factor);
  void update(std::size_t unit, const Adam& options);
  Result<void> fetch(std::size_t unit);
  Result<void> offload(std::size_t unit);

  // Bytes that this rank has allocated.
  std::size_t bytes() const { return block_.size() + moments_bytes_; }
  // The bytes of all ranks together, computed without allocating them. `blocks` hold gradients and fetched moments; `moments` stay in
  // memory.
  struct Memory {
    std::size_t blocks = 0, moments = 0;
  };
  static Memory memory(const std::vector<const Layout*>& units, Grid grid, const StepGraph& graph);

 private:
  struct Rows {
    float* gradient = nullptr;
    float *m = nullptr, *v = nullptr;
    std::size_t numel = 0;
    bool present = false;  // some rank had a gradient in this step
    std::int64_t updates = 0;
  };
  struct Unit {
    std::vector<Rows> rows;        // by parameter
    std::vector<float> moments;    // moments of all parameters, unless they are offloaded
    std::span<std::byte> fetched;  // place of offloaded moments between fetch and offload
    std::size_t file_offset = 0;
  };

  explicit StepRows(Units units) : sharded_(std::move(units)) {}

  Units sharded_;
  std::vector<Unit> units_;
  std::vector<std::byte> block_;
  std::size_t moments_bytes_ = 0;
  std::optional<StateFile> file_;
};

// Offsets in StepRows' block, by unit. A gradient has its place from its first reduction to its update, an offloaded moment from its fetch
// to its offload. Units share bytes where these times do not overlap.
struct RowsPlan {
  std::vector<std::size_t> gradient, moments;  // by unit: offsets in the block
  std::size_t bytes = 0;
  std::vector<bool> offloaded;
};
RowsPlan plan_rows(const StepGraph& graph, const std::vector<std::size_t>& own_numel);

}  // namespace shoal::fsdp
