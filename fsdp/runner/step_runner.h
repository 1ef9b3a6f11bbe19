// Runs a hand-written step graph on one rank, over the same units, arenas, gate, reducer and AdamW that fully_shard's hooks use. The
// graph's Progress decides what runs next, no step machine. A graph states each unshard and reduction, which the machine would derive once
// more from autograd's events. Its lanes run at the same time, and the machine's actions one after another
// (docs/decisions/a-graph-has-its-own-machine.md).
//
// The compute lane is the caller's thread: it calls the user's forward, backward and loss, and updates this rank's rows. The communication
// lane is a thread for the time of a step, because its nodes wait for other ranks. So unshard(u+1) runs while forward(u) computes.
// Meanwhile only that thread enters the engine (ShardedModel). It never runs the user's code, so it never takes the GIL. Graphs with file
// nodes have a third thread, the host-copy lane.
//
// A mutex guards the lanes' shared state: the progress of the step and gradients in flight. Within a step a node's end on one lane lets
// another lane continue; messages through the loop would be slower and no simpler.
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
#include "fsdp/runner/step_rows.h"
#include "fsdp/shard/sharded_model.h"
#include "runtime/telemetry/activity_scope.h"

namespace shoal::fsdp {

// The user's computation, called on the compute lane, one call at a time. `input` is the node whose output (in a backward: whose gradient)
// is read; -1: this rank's batch, of the node's micro-batch. The forward without a unit is the loss.
class StepProgram {
 public:
  // A unit's gradients by parameter: whole, contiguous, of the parameter's dtype; null: none on this rank.
  using Gradients = std::vector<const std::byte*>;

  // `saves`: the backward reads this forward's saved state; else the forward is rerun before it (recompute), and nothing must be kept.
  virtual Result<void> forward(const Node& node, std::int32_t input, bool saves) = 0;
  virtual Result<void> recompute(const Node& node, std::int32_t input) = 0;
  // `reduced`: the gradients go to their owners now. The returned memory, with earlier micro-batches added, stays valid until released().
  // Otherwise the program keeps them for the next reduced backward, and returns nothing.
  virtual Result<Gradients> backward(const Node& node, std::int32_t input, bool reduced) = 0;
  virtual void released(std::int32_t unit, std::int32_t micro) = 0;

 protected:
  ~StepProgram() = default;
};

class StepRunner {
 public:
  struct Options {
    Adam optimizer;
    std::string offload_folder;         // for graphs that offload optimizer state
    std::function<bool()> interrupted;  // polled by the compute lane while it waits
    // Counts the time of the compute lane: its nodes, and its waits for nodes of other lanes. A graph with updates is a step.
    std::shared_ptr<runtime::Telemetry> telemetry = {};
  };
  // Returns InvalidArgument for a graph that cannot be run (check_runnable) or has other units than the model. Other errors: as
  // StepRows::make.
  static Result<std::unique_ptr<StepRunner>> make(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options);
  ~StepRunner();

  // Runs one step. Every rank runs the same graph. After an error this rank's part of the model is lost: further steps fail with the same
  // cause, and the other ranks' waits with it. If the cause is a rank's death, each rank's wait fails with that death by itself.
  Result<void> run(StepProgram& program);

  const StepGraph& graph() const { return graph_; }
  std::uint64_t steps() const { return steps_; }
  int rank() const { return model_->rank(); }
  // By node: measured and planned times of the last step. measured() is empty before the first step, planned() before the second.
  const std::vector<Span>& measured() const { return measured_; }
  const std::vector<Span>& planned() const { return planned_; }
  // Norm of all gradients of the last step before clipping; NaN without a clip_norm.
  double norm() const { return norm_; }
  const ShardedModel& model() const { return *model_; }
  // Bytes of gradients and moments; constant while steps run.
  std::size_t rows_bytes() const { return rows_.bytes(); }

 private:
  using Perform = std::function<Result<void>(const Node&)>;

  StepRunner(std::shared_ptr<ShardedModel> model, StepGraph graph, Options options, StepRows rows);
  Result<void> run_lanes(StepProgram& program);
  void run_lane(Lane lane, const Perform& perform);
  bool wait_for_other_lane(std::unique_lock<std::mutex>& lock, Lane lane);
  int key_of(const Node& node) const;
  // Begins to count the compute lane's wait for a node of another lane in the telemetry.
  void begin_counted_wait(std::optional<runtime::ActivityScope>& wait) const;
  Result<void> compute(const Node& node, StepProgram& program);
  Result<void> communicate(const Node& node);
  Result<void> copy(const Node& node);
  Result<void> reduce_scatter(const Node& node);
  Result<void> clip(double max_norm);
  void report_released(StepProgram& program);
  double now() const;

  const std::shared_ptr<ShardedModel> model_;
  const StepGraph graph_;
  const Options options_;
  const bool commits_, updates_;
  const int first_unit_;  // the telemetry's number of the graph's first unit
  std::uint64_t steps_ = 0;
  std::vector<double> estimate_;  // duration of each node, for planned times
  std::vector<Span> planned_, measured_;
  std::optional<Error> lost_;
  runtime::TimePoint began_{};
  StepRows rows_;
  double norm_ = std::numeric_limits<double>::quiet_NaN();

  // Shared between the lanes, under the mutex; `stopping_` is also read without it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Progress> progress_;
  std::optional<Error> failure_;                       // the first error of this step
  using Turn = std::pair<std::int32_t, std::int32_t>;  // (unit, micro-batch)
  std::map<Turn, StepProgram::Gradients> gradients_;   // computed and not published yet
  std::vector<Turn> released_;                         // published and not reported to the program yet
  std::atomic<bool> stopping_ = false;
};

}  // namespace shoal::fsdp
