#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

Result<Rewritten> offload(const StepGraph& graph, const std::vector<std::int32_t>& units) {
  Edit edit(graph);
  std::vector<std::int32_t> updates, offloads;
  for (const auto& n : graph.nodes()) {
    if (n.op == Op::kOffload || n.op == Op::kFetch)
      return fail(invalid_argument(fmt::format("{} (node {}): this step offloads already", graph.label(n), n.id)));
    if (n.op == Op::kOptimizerUpdate && std::find(units.begin(), units.end(), n.unit) != units.end()) updates.push_back(n.id);
  }
  if (updates.empty() && !units.empty()) return fail(invalid_argument("these units have no update, so no state can be offloaded"));
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const std::int32_t update = updates[i];
    Node in, out;
    in.op = Op::kFetch;
    out.op = Op::kOffload;
    in.unit = out.unit = edit.node(update).unit;
    if (i >= 2) in.after.push_back({offloads[i - 2], EdgeKind::kMemory});
    // The fetch begins with the compute node right before `at`, not earlier: the state would occupy memory needlessly.
    const std::int32_t at = i == 0 ? update : updates[i - 1];
    int ahead = 0;
    for (std::size_t place = edit.position(at); place-- > 0 && ahead < 2;) {
      const auto id = edit.order()[place];
      if (lane_of(edit.node(id).op) != Lane::kCompute) continue;
      if (++ahead == 2) in.after.push_back({id, EdgeKind::kOrder});
    }
    const auto fetch = edit.put_before(at, std::move(in));
    edit.connect(fetch, update, EdgeKind::kData);
    out.after.push_back({update, EdgeKind::kData});
    offloads.push_back(edit.put_after(update, std::move(out)));
  }
  return edit.result();
}

}  // namespace shoal::fsdp
