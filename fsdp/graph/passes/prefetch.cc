#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

namespace {

constexpr std::int32_t kNone = -1;

bool computes(const Node& n) { return n.op == Op::kForward || n.op == Op::kBackward || n.op == Op::kRecompute; }

// The last compute node before `reader` whose prefetch list names the unshard's unit.
std::int32_t listed(const Edit& edit, const Prefetch& how, const Node& unshard, const std::vector<std::int32_t>& compute,
                    std::size_t reader) {
  const bool backward = edit.node(compute[reader]).op != Op::kForward;
  for (std::size_t k = reader; k-- > 0;) {
    const Node& n = edit.node(compute[k]);
    if ((n.op != Op::kForward) != backward || n.micro != unshard.micro) break;
    for (const auto& list : how.lists) {
      if (n.part > 0 || n.unit != list.unit || list.backward != backward) continue;
      if (std::any_of(list.ahead.begin(), list.ahead.end(), [&](std::int32_t u) { return is_for(unshard, u); })) return compute[k];
    }
  }
  return kNone;
}

}  // namespace

Result<Rewritten> prefetch(const StepGraph& graph, const Prefetch& how) {
  if (how.depth < 0) return fail(invalid_argument(fmt::format("prefetch must be a number of compute nodes, 0 or more, not {}", how.depth)));
  Edit edit(graph);
  std::vector<std::int32_t> compute, unshards;
  for (const auto& n : graph.nodes()) {
    if (computes(n)) compute.push_back(n.id);
    if (n.op == Op::kUnshard) unshards.push_back(n.id);
  }
  // For each unshard, the compute node before which it is issued.
  std::map<std::int32_t, std::size_t> issued_at;
  for (const auto u : unshards) {
    const auto reader = std::find_if(compute.begin(), compute.end(), [&](std::int32_t c) {
      const Node& n = edit.node(c);
      return c > u && reads_unit(n) && is_for(edit.node(u), n.unit);
    });
    if (reader == compute.end()) continue;
    const auto at = static_cast<std::size_t>(reader - compute.begin());
    const auto list = listed(edit, how, edit.node(u), compute, at);
    issued_at[u] = list != kNone ? static_cast<std::size_t>(std::find(compute.begin(), compute.end(), list) - compute.begin())
                                 : at - std::min(at, static_cast<std::size_t>(how.depth));
  }
  for (const auto u : unshards) {
    const auto found = issued_at.find(u);
    if (found == issued_at.end()) continue;
    const std::size_t k = found->second;
    // One edge, from the compute node that ends when the unshard is issued, replaces the unshard's edges from compute nodes.
    Node& n = edit.node(u);
    std::erase_if(n.after, [&](const Edge& e) { return computes(edit.node(e.from)); });
    if (k > 0) edit.connect(compute[k - 1], u, EdgeKind::kOrder);
    std::size_t place = edit.position(compute[k]);
    if (edit.position(u) < place) --place;  // without the moved node, later places shift
    const auto not_before = [&](std::int32_t other) {
      std::size_t p = edit.position(other) + 1;
      if (edit.position(u) < p) --p;
      place = std::max(place, p);
    };
    for (const auto& e : n.after) not_before(e.from);
    for (const auto other : edit.order()) {
      if (other == u) break;
      const Node& lease = edit.node(other);
      if (lease.op != Op::kReshard) continue;
      bool same = is_for(n, lease.unit);
      for (const auto also : lease.also) same = same || is_for(n, also);
      if (same) not_before(other);
    }
    edit.move_to(u, place);
  }
  return edit.result();
}

}  // namespace shoal::fsdp
