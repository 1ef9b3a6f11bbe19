#include <cmath>
#include <map>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

Result<Rewritten> clip_norm(const StepGraph& graph, double max_norm) {
  if (!(max_norm > 0) || !std::isfinite(max_norm))
    return fail(invalid_argument(fmt::format("max_norm must be a positive number, not {}", max_norm)));
  Edit edit(graph);
  std::int32_t last_reduction = -1, before = -1;
  std::map<std::int32_t, std::int32_t> reduced;  // by unit: its last reduce_scatter
  std::vector<std::int32_t> after;               // nodes that use the clipped gradients
  for (const auto& n : graph.nodes()) {
    if (n.op == Op::kClipNorm) return fail(invalid_argument("this step clips its gradients already"));
    if (n.op == Op::kReduceScatter) {
      if (!after.empty()) {
        return fail(invalid_argument("gradients cannot be clipped by their global norm when units are updated in backward")
                        .with_hint("leave out one of the two passes"));
      }
      last_reduction = reduced[n.unit] = n.id;
    }
    if (n.op == Op::kCommit || n.op == Op::kOptimizerUpdate) {
      if (before < 0) before = n.id;
      after.push_back(n.id);
    }
  }
  if (last_reduction < 0) return fail(invalid_argument("this step reduces no gradients, so none can be clipped"));
  Node clip;
  clip.op = Op::kClipNorm;
  clip.value = max_norm;
  for (const auto& [unit, id] : reduced) clip.after.push_back({id, EdgeKind::kData});
  const auto clipping = before < 0 ? edit.put_last(std::move(clip)) : edit.put_before(before, std::move(clip));
  for (const auto id : after) edit.connect(clipping, id, edit.node(id).op == Op::kCommit ? EdgeKind::kOrder : EdgeKind::kData);
  return edit.result();
}

}  // namespace shoal::fsdp
