// What a hand-written step keeps beside a rank's rows of every parameter: their gradients, and AdamW's moments.
//
// Gradients lie in one block at offsets that the graph decides (graph/offsets.h): those of units that are updated in backward share bytes.
// Moments of units that the graph fetches and offloads lie in a file between two updates, and in the same block meanwhile. All memory is
// taken when this is made: a step allocates none. A unit's rows belong to whichever lane runs its node; the graph's edges say which.
#pragma once

#include <optional>
#include <vector>

#include "fsdp/graph/step_graph.h"
#include "fsdp/kernels/adam.h"
#include "fsdp/shard/sharded_model.h"
#include "fsdp/shard/state_file.h"

namespace shoal::fsdp {

class StepRows {
 public:
  // `graph` is runnable and of these units. Unimplemented when it updates or clips what is not fp32; InvalidArgument when it offloads and
  // there is no folder; as StateFile::make.
  static Result<StepRows> make(const ShardedModel::Units& units, const StepGraph& graph, const std::string& offload_folder);

  void begin_step();
  // Before a unit's gradients are reduced: where each parameter's sum goes, and whether it is added to what is there.
  std::vector<Reducer::Gradient> to_reduce(std::size_t unit, const std::vector<const std::byte*>& whole) const;
  void reduced(const Reducer::Reduced& reduced);
  // Of the gradients of all units: the part of the square of their norm that this rank answers for.
  double squares() const;
  void scale(float factor);
  void update(std::size_t unit, const Adam& options);
  Result<void> fetch(std::size_t unit);
  Result<void> offload(std::size_t unit);

  // What it has allocated.
  std::size_t bytes() const { return block_.size() + moments_bytes_; }
  // The same of all ranks, known without them: blocks (gradients, and moments that are fetched), and moments that stay.
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
    std::vector<float> moments;    // of all of them, unless they are offloaded
    std::span<std::byte> fetched;  // where they are while they are not
    std::size_t file_offset = 0;
  };

  explicit StepRows(ShardedModel::Units units) : sharded_(std::move(units)) {}

  ShardedModel::Units sharded_;
  std::vector<Unit> units_;
  std::vector<std::byte> block_;
  std::size_t moments_bytes_ = 0;
  std::optional<StateFile> file_;
};

// The block of StepRows, by unit: gradients from the first reduction to the update, moments from fetch to offload.
struct RowsPlan {
  std::vector<std::size_t> gradient, moments;  // offsets
  std::size_t bytes = 0;
  std::vector<bool> offloaded;
};
RowsPlan plan_rows(const StepGraph& graph, const std::vector<std::size_t>& own_numel);

}  // namespace shoal::fsdp
