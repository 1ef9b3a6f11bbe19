#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

Result<Rewritten> optimizer_in_backward(const StepGraph& graph) {
  Edit edit(graph);
  std::vector<std::int32_t> updates, compute;
  std::vector<std::int32_t> reduced(graph.units().size(), -1);
  std::int32_t commit = -1;
  for (const auto& n : graph.nodes()) {
    if (n.op == Op::kClipNorm) {
      return fail(
          invalid_argument("units cannot be updated in backward when gradients are clipped by their global norm: the norm is known only "
                           "when all are reduced")
              .with_hint("leave out one of the two passes"));
    }
    if (n.op == Op::kBackward) compute.push_back(n.id);
    if (n.op == Op::kOptimizerUpdate && n.unit >= 0) updates.push_back(n.id);
    if (n.op == Op::kCommit) commit = n.id;
    if (n.op == Op::kReduceScatter) {
      for (std::int32_t u = 0; u < static_cast<std::int32_t>(reduced.size()); ++u) {
        if (is_for(n, u)) reduced[static_cast<std::size_t>(u)] = n.id;
      }
    }
  }
  if (updates.empty()) return fail(invalid_argument("this step has no update that could run in backward"));
  for (const auto id : updates) {
    const auto reduction = reduced[static_cast<std::size_t>(edit.node(id).unit)];
    if (reduction < 0) continue;
    // The update goes behind the first compute node after the reduction, whose time hides the reduction; without one, right behind the
    // reduction.
    std::int32_t behind = reduction;
    for (const auto c : compute) {
      if (c > reduction) {
        behind = c;
        break;
      }
    }
    std::erase_if(edit.node(id).after, [&](const Edge& e) { return edit.node(e.from).op == Op::kCommit; });
    edit.connect(reduction, id, EdgeKind::kData);
    std::size_t place = edit.position(behind) + 1;
    // Updates at the same place keep their order.
    while (place < edit.order().size() && edit.node(edit.order()[place]).op == Op::kOptimizerUpdate && edit.order()[place] != id) ++place;
    if (edit.position(id) < place) --place;
    edit.move_to(id, place);
    if (commit >= 0) edit.connect(id, commit, EdgeKind::kOrder);
  }
  return edit.result();
}

}  // namespace shoal::fsdp
