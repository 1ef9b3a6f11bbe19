// Checks that a hand-written graph can run as a step: the rules that fully_shard's hooks keep by construction.
#pragma once

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

// "Before" means ended by then: by edges, or by order on one lane. The rules:
//   - Each micro-batch has one forward without a unit (-1), the loss. It reads the output of a unit's forward. Every other forward reads
//     the output of a forward in its micro-batch, or the batch.
//   - A forward, recompute or backward of a unit has an unshard of it before it, and the reshard after it unless that lease is kept.
//     Each unshard has its reshard: a lease ends within the step.
//   - A backward reads the gradient from the loss, or from the backward of the unit that read its output. A reduce_scatter follows a
//     unit's last backward, and may follow earlier ones.
//   - A recompute comes between its forward and backward.
//   - An update comes after its unit's last reduce_scatter and after the commit. It may come before the commit (optimizer in backward) if
//     no later node reads the unit. Every rank has then published its gradients and stopped reading the unit.
//   - A clip_norm comes after all reductions and before all updates.
//   - A fetch comes before its unit's update, an offload after it. A unit has both or neither: its state lies in a file between steps.
//   - There is at most one commit. It comes after all nodes except the updates that follow it, their fetches and their offloads.
//   - Updates, fetches, offloads, clip_norm and commit belong to no micro-batch (0).
//   - A unit has at most one update, and per micro-batch one forward, recompute, backward and reduce_scatter.
// StepGraph::add excludes cycles. Returns InvalidArgument, with the node and what it lacks, or Unimplemented for an op without an
// implementation.
Result<void> check_runnable(const StepGraph& graph);

// For a runnable graph: the node whose output a forward or backward reads; -1: it reads the batch.
std::int32_t input_of(const StepGraph& graph, const Node& node);

// The number of micro-batches in a step.
std::int32_t num_micro_batches(const StepGraph& graph);
// True when a unit has a node of this kind in this micro-batch.
bool has(const StepGraph& graph, Op op, std::int32_t unit, std::int32_t micro);

}  // namespace shoal::fsdp
