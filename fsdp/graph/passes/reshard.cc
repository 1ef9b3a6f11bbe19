#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

namespace {

constexpr std::int32_t kNoNode = -1;

// A unit's lease around one micro-batch's forward and backward.
struct Turn {
  std::int32_t unshard = kNoNode, last_forward = kNoNode, reshard = kNoNode, again = kNoNode, first_backward = kNoNode;
};

std::vector<Turn> turns_of(const StepGraph& graph, std::int32_t unit) {
  std::vector<Turn> out;
  Turn turn;
  for (const auto& n : graph.nodes()) {
    if (!is_for(n, unit)) continue;
    const bool back = turn.first_backward != kNoNode;
    if (n.op == Op::kForward) {
      if (back) out.push_back(std::exchange(turn, {}));
      turn.last_forward = n.id;
    } else if (n.op == Op::kBackward || n.op == Op::kRecompute) {
      if (!back) turn.first_backward = n.id;
    } else if (n.op == Op::kUnshard && back) {
      out.push_back(std::exchange(turn, {}));
      turn.unshard = n.id;
    } else if (n.op == Op::kUnshard) {
      (turn.last_forward == kNoNode ? turn.unshard : turn.again) = n.id;
    } else if (n.op == Op::kReshard && !back && turn.last_forward != kNoNode) {
      turn.reshard = n.id;
    }
  }
  out.push_back(turn);
  return out;
}

}  // namespace

Result<Rewritten> reshard(const StepGraph& graph, const std::vector<bool>& after_forward) {
  if (after_forward.size() != graph.units().size()) {
    return fail(invalid_argument(
        fmt::format("reshard_after_forward has values for {} units, the step has {}", after_forward.size(), graph.units().size())));
  }
  for (const auto& n : graph.nodes()) {
    if (!n.also.empty()) return fail(invalid_argument(fmt::format("{} (node {}) belongs to a bucket already", graph.label(n), n.id)));
  }
  Edit edit(graph);
  for (std::int32_t unit = 0; unit < static_cast<std::int32_t>(graph.units().size()); ++unit) {
    for (const auto& t : turns_of(graph, unit)) {
      if (t.last_forward == kNoNode || t.first_backward == kNoNode || t.unshard == kNoNode) continue;
      if (!after_forward[static_cast<std::size_t>(unit)] && t.reshard != kNoNode && t.again != kNoNode) {
        edit.replace(t.again, t.unshard);
        edit.remove(t.reshard);
      } else if (after_forward[static_cast<std::size_t>(unit)] && t.reshard == kNoNode && t.again == kNoNode) {
        Node drop, take;
        drop.op = Op::kReshard;
        take.op = Op::kUnshard;
        drop.unit = take.unit = unit;
        drop.micro = take.micro = edit.node(t.last_forward).micro;
        take.backward = true;
        drop.after = {{t.last_forward, EdgeKind::kOrder}};
        const auto dropped = edit.put_after(t.last_forward, std::move(drop));
        take.after = {{dropped, EdgeKind::kMemory}};
        const auto taken = edit.put_before(t.first_backward, std::move(take));
        for (const auto id : edit.order()) {
          const Node& n = edit.node(id);
          if (reads_unit(n) && n.unit == unit && n.op != Op::kForward && n.micro == edit.node(t.first_backward).micro) {
            edit.disconnect(t.unshard, id);
            edit.connect(taken, id, EdgeKind::kData);
          }
        }
      }
    }
  }
  return edit.result();
}

}  // namespace shoal::fsdp
