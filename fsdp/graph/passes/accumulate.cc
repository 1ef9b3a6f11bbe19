#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

namespace {

// Nodes that occur once per step, for any number of micro-batches.
bool once(const Node& n) {
  return n.op == Op::kCommit || n.op == Op::kClipNorm || n.op == Op::kOptimizerUpdate || n.op == Op::kFetch || n.op == Op::kOffload;
}

}  // namespace

Result<Rewritten> accumulate(const StepGraph& graph, const Accumulate& how) {
  if (how.micro_batches < 1 || how.micro_batches > StepGraph::kMaxMicroBatches)
    return fail(invalid_argument(
        fmt::format("{} micro-batches are not possible: a step has 1 to {}", how.micro_batches, StepGraph::kMaxMicroBatches)));
  if (std::any_of(graph.nodes().begin(), graph.nodes().end(), [](const Node& n) { return n.micro > 0; }))
    return fail(invalid_argument("this step has several micro-batches already"));
  Rewritten out{StepGraph(graph.units()), {}};
  std::vector<std::int32_t> ids(graph.nodes().size(), -1);  // by node: id of its latest copy
  const auto copy = [&](const Node& n, std::int32_t micro) -> Result<void> {
    Node copy = n;
    copy.micro = once(n) ? 0 : micro;
    copy.after.clear();
    for (const auto& e : n.after) {
      if (const auto from = ids[static_cast<std::size_t>(e.from)]; from >= 0) copy.after.push_back({from, e.kind});
    }
    SHOAL_TRY(ids[static_cast<std::size_t>(n.id)], out.graph.add(std::move(copy)));
    out.from.push_back(n.id);
    return {};
  };
  for (std::int32_t micro = 0; micro < how.micro_batches; ++micro) {
    const bool last = micro + 1 == how.micro_batches;
    std::fill(ids.begin(), ids.end(), -1);
    for (const auto& n : graph.nodes()) {
      if (!last && (once(n) || (n.op == Op::kReduceScatter && !how.reduce_each))) continue;
      SHOAL_OK(copy(n, micro));
    }
  }
  return out;
}

}  // namespace shoal::fsdp
