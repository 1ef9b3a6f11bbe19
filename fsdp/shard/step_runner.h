// Runs a step graph that was written by hand, on one rank: the same units, arenas, gate, reducer and AdamW that fully_shard's hooks drive.
//
// The compute lane is the caller's thread: it calls back for forward, backward and loss (the user's code) and updates this rank's rows. The
// communication lane is a thread of its own for as long as a step runs, because its nodes wait for other ranks: so unshard(u+1) is under
// way while forward(u) computes. It alone enters the engine (ShardedModel) meanwhile, and never the user's code, so it never takes the GIL.
// The host-copy lane is a third one, if the graph has nodes for it: files.
// What they share (how far the step has come, gradients on their way) is guarded by a mutex: a node's end on one lane is another's
// reason to go on, within a step, which a message through the loop would make slower and not simpler.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "fsdp/graph/progress.h"
#include "fsdp/graph/step_graph.h"
#include "fsdp/kernels/adam.h"
#include "fsdp/shard/sharded_model.h"
#include "fsdp/shard/step_rows.h"

namespace shoal::fsdp {

// The user's computation. Called on the compute lane, one call at a time. `input`: the node whose output (of a backward: whose gradient) it
// reads, -1: this rank's batch, of the node's micro-batch. The forward of no unit is the loss.
class StepProgram {
 public:
  // Of each of a unit's parameters, in order: whole, contiguous, of the parameter's dtype; null: it has none on this rank.
  using Gradients = std::vector<const std::byte*>;

  // `saves`: the backward reads what this forward saved; else it is run again before (recompute), and nothing need be kept.
  virtual Result<void> forward(const Node& node, std::int32_t input, bool saves) = 0;
  virtual Result<void> recompute(const Node& node, std::int32_t input) = 0;
  // `reduced`: the gradients go to their owners now; what it returns, with what earlier micro-batches left, stays there until released.
  // Else they are kept for the next one that is, and nothing is returned.
  virtual Result<Gradients> backward(const Node& node, std::int32_t input, bool reduced) = 0;
  virtual void released(std::int32_t unit, std::int32_t micro) = 0;

 protected:
  ~StepProgram() = default;
};

class StepRunner {
 public:
  struct Options {
    Adam optimizer;
    std::string offload_folder;         // for graphs that offload
    std::function<bool()> interrupted;  // asked by the compute lane while it waits
  };
  // InvalidArgument for a graph that cannot be run (check_runnable) or whose units are not the model's; as StepRows::make.
  static Result<std::unique_ptr<StepRunner>> make(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options);

  // One step. Every rank runs the same graph. After an error this rank's part of the model is lost: further steps fail with the same cause,
  // and so do the other ranks' waits, unless it was theirs.
  Result<void> run(StepProgram& program);

  const StepGraph& graph() const { return graph_; }
  std::uint64_t steps() const { return steps_; }
  int rank() const { return model_->rank(); }
  // Of the last step; nothing before there was one, or before there was one to plan from.
  const std::vector<Span>& measured() const { return measured_; }
  const std::vector<Span>& planned() const { return planned_; }
  // Of all gradients of the last step, before they were clipped; NaN without a clip_norm.
  double norm() const { return norm_; }
  const ShardedModel& model() const { return *model_; }
  // What it keeps beside the units: gradients and moments. Nothing is added to it while steps run.
  std::size_t rows_bytes() const { return rows_.bytes(); }

 private:
  using Perform = std::function<Result<void>(const Node&)>;

  StepRunner(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options, StepRows rows);
  Result<void> run_lanes(StepProgram& program);
  void run_lane(Lane lane, const Perform& perform);
  bool wait_for_other_lane(std::unique_lock<std::mutex>& lock, Lane lane);
  Result<void> compute(const Node& node, StepProgram& program);
  Result<void> communicate(const Node& node);
  Result<void> copy(const Node& node);
  Result<void> reduce_scatter(const Node& node);
  Result<void> clip(double max_norm);
  void tell_released(StepProgram& program);
  double now() const;

  const std::shared_ptr<ShardedModel> model_;
  const StepGraph graph_;
  const Options options_;
  const bool commits_;
  std::uint64_t steps_ = 0;
  std::vector<double> estimate_;  // of each node's duration: what planned times are made of
  std::vector<Span> planned_, measured_;
  std::optional<Error> lost_;
  runtime::TimePoint began_{};
  StepRows rows_;
  double norm_ = std::numeric_limits<double>::quiet_NaN();

  // Between the lanes.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Progress> progress_;
  std::optional<Error> failure_;                       // the first of this step
  using Turn = std::pair<std::int32_t, std::int32_t>;  // a unit in a micro-batch
  std::map<Turn, StepProgram::Gradients> gradients_;   // on their way
  std::vector<Turn> released_;                         // not told yet
  std::atomic<bool> stopping_ = false;
};

}  // namespace shoal::fsdp
