#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"
#include "fsdp/graph/runnable.h"

namespace shoal::fsdp {

Result<Rewritten> recompute(const StepGraph& graph, const std::vector<std::int32_t>& units) {
  Edit edit(graph);
  for (const auto& n : graph.nodes()) {
    if (n.op != Op::kBackward || std::find(units.begin(), units.end(), n.unit) == units.end()) continue;
    std::int32_t forward = -1;
    for (const auto& f : graph.nodes()) {
      if (f.part > 0 && f.unit == n.unit) {
        return fail(invalid_argument(fmt::format("{} (node {}) is part of a traced module and cannot run by itself", graph.label(f), f.id))
                        .with_hint("use torch.utils.checkpoint in the module"));
      }
      if (f.op == Op::kForward && f.unit == n.unit && f.micro == n.micro) forward = f.id;
      if (f.op == Op::kRecompute && f.unit == n.unit && f.micro == n.micro)
        return fail(invalid_argument(fmt::format("{} is recomputed already", graph.label(n))));
    }
    if (forward < 0) return fail(invalid_argument(fmt::format("{} (node {}) has no forward to run again", graph.label(n), n.id)));
    Node again;
    again.op = Op::kRecompute;
    again.unit = n.unit;
    again.micro = n.micro;
    again.backward = true;
    const auto input = input_of(graph, graph.nodes()[static_cast<std::size_t>(forward)]);
    if (input >= 0) again.after.push_back({input, EdgeKind::kData});
    for (const auto& e : n.after) {
      if (graph.nodes()[static_cast<std::size_t>(e.from)].op == Op::kUnshard) again.after.push_back(e);
    }
    const auto added = edit.put_before(n.id, std::move(again));
    edit.connect(added, n.id, EdgeKind::kData);
  }
  return edit.result();
}

}  // namespace shoal::fsdp
