// Whether a graph that somebody wrote by hand can be run as a step: the rules that the hooks of fully_shard keep by themselves.
#pragma once

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

// "Comes before" means by edges, or by order on one lane: then it has ended. The rules:
//   - one forward of no unit (-1) per micro-batch is the loss. It reads the output of a unit's forward; every other forward reads that of
//   one of its micro-batch, or the batch.
//   - a forward, recompute or backward of a unit has an unshard of it before it and, unless that lease is kept, the reshard after it. Each
//   unshard has its reshard: a lease ends within the step.
//   - a backward reads the gradient that the loss, or the backward of the unit that read its output, made. Behind its last one, a unit has
//   a reduce_scatter; behind earlier ones it may have.
//   - a recompute comes between its forward and backward.
//   - an update has the last reduce_scatter of its unit before it, and the commit, unless nothing reads the unit any more: then every rank
//   has published its gradients, and reads it no more (optimizer in backward). Such an update comes before the commit.
//   - a clip_norm has all reductions before it and all updates after it.
//   - a fetch comes before its unit's update, an offload after it.
//   - the commit comes after everything but updates and what belongs to them, once.
//   - of a unit there is at most one update, and per micro-batch one forward, recompute, backward and reduce_scatter.
// A graph can have no cycle (StepGraph::add). InvalidArgument names the node and what it lacks; Unimplemented an op that nobody runs.
Result<void> check_runnable(const StepGraph& graph);

// Of a runnable graph: the node whose output a forward or backward reads; -1: none, it reads the batch.
std::int32_t input_of(const StepGraph& graph, const Node& node);

// How many micro-batches a step has.
std::int32_t num_micro_batches(const StepGraph& graph);
// Whether a unit has a node of this kind in this micro-batch.
bool has(const StepGraph& graph, Op op, std::int32_t unit, std::int32_t micro);

}  // namespace shoal::fsdp
