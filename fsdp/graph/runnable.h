// Whether a graph that somebody wrote by hand can be run as a step: the rules that the hooks of fully_shard keep by themselves.
#pragma once

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

// "Comes before" means by edges, or by order on one lane: then it has ended. The rules:
//   - one forward of no unit (-1) is the loss. It reads the output of a unit's forward; every other forward reads that of one, or the
//   batch.
//   - a forward or backward of a unit has an unshard of it before it and, unless that lease is kept, the reshard after it. Each unshard has
//     its reshard: a lease ends within the step.
//   - a backward reads the gradient that the loss, or the backward of the unit that read its output, made. Each has a reduce_scatter.
//   - an update has the commit and a reduce_scatter of its unit before it. The commit comes after everything else, once.
//   - of a unit there is at most one forward, backward, reduce_scatter and update.
// A graph can have no cycle (StepGraph::add). InvalidArgument names the node and what it lacks; Unimplemented an op that nobody runs yet.
Result<void> check_runnable(const StepGraph& graph);

// Of a runnable graph: the node whose output a forward or backward reads; -1: none, it reads the batch.
std::int32_t input_of(const StepGraph& graph, const Node& node);

}  // namespace shoal::fsdp
