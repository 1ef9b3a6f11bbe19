// Shared by the binding files of the sharding engine.
#pragma once

#include "fsdp/graph/passes/passes.h"
#include "fsdp/shard/sharded_model.h"
#include "python/native/collective.h"

namespace shoal::python {

// A node of a step graph for Python.
struct GraphNode {
  std::string label;
  std::string lane;
  std::vector<std::int32_t> after;  // ids of its predecessors
  std::string op;
  std::vector<std::string> units;  // their names, the root's as "root"; empty for all units
  std::int32_t micro = 0;
};
std::vector<GraphNode> graph_nodes(const fsdp::StepGraph& graph);
// (start, end) in microseconds per node, or None.
nb::list spans_list(const std::vector<fsdp::Span>& spans);
nb::dict memory_dict(const fsdp::ShardedModel::Memory& memory);

}  // namespace shoal::python
