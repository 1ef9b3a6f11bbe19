// Types that all binding files of the sharding engine use.
#pragma once

#include "fsdp/graph/passes/passes.h"
#include "fsdp/protect/shared_arrays.h"
#include "fsdp/shard/sharded_model.h"
#include "python/native/transport/collective.h"

namespace shoal::python {

// A node of a step graph for Python.
struct GraphNode {
  std::string label;
  std::string lane;
  std::vector<std::int32_t> after;  // ids of its predecessors
  std::string op;
  std::vector<std::string> units;  // names of its units, with "root" for the root's; empty: all units
  std::int32_t micro = 0;
};
std::vector<GraphNode> graph_nodes(const fsdp::StepGraph& graph);
// A list with (start, end) in microseconds for each node, or None for a node that did not run.
nb::list spans_list(const std::vector<fsdp::Span>& spans);
// (unit, parameter, name, dtype) of arrays.
using States = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::string, std::string>>;
std::vector<fsdp::StateSpec> specs_of(const States& states);  // with the GIL: an unknown dtype raises
nb::dict memory_dict(const fsdp::ShardedModel::Memory& memory);

}  // namespace shoal::python
