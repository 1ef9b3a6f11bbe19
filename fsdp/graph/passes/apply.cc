#include "fsdp/graph/passes/passes.h"

namespace shoal::fsdp {

namespace {

// Replaces `rewritten` by the result of `pass` on its graph. The new `from` names nodes of the graph that apply() got, not of the
// graph that `pass` got.
template <class Pass>
Result<void> then(Rewritten& rewritten, Pass&& pass) {
  SHOAL_TRY(Rewritten next, pass(rewritten.graph));
  for (auto& from : next.from) {
    if (from >= 0) from = rewritten.from[static_cast<std::size_t>(from)];
  }
  rewritten = std::move(next);
  return {};
}

}  // namespace

Result<Rewritten> apply(const StepGraph& graph, const PassOptions& o) {
  Rewritten out{graph, {}};
  for (const auto& n : graph.nodes()) out.from.push_back(n.id);
  if (!o.reshard_after_forward.empty()) SHOAL_OK(then(out, [&](const StepGraph& g) { return reshard(g, o.reshard_after_forward); }));
  if (!o.recompute.empty()) SHOAL_OK(then(out, [&](const StepGraph& g) { return recompute(g, o.recompute); }));
  if (o.accumulate.micro_batches != 1) SHOAL_OK(then(out, [&](const StepGraph& g) { return accumulate(g, o.accumulate); }));
  if (o.bucket_bytes > 0) SHOAL_OK(then(out, [&](const StepGraph& g) { return bucket(g, o.unit_bytes, o.bucket_bytes); }));
  if (o.max_norm != 0) SHOAL_OK(then(out, [&](const StepGraph& g) { return clip_norm(g, o.max_norm); }));
  if (o.optimizer_in_backward) SHOAL_OK(then(out, [](const StepGraph& g) { return optimizer_in_backward(g); }));
  if (!o.offload.empty()) SHOAL_OK(then(out, [&](const StepGraph& g) { return offload(g, o.offload); }));
  SHOAL_OK(then(out, [&](const StepGraph& g) { return prefetch(g, o.prefetch); }));
  return out;
}

}  // namespace shoal::fsdp
