#include <algorithm>

#include <fmt/format.h>

#include "fsdp/graph/passes/edit.h"

namespace shoal::fsdp {

namespace {

bool together(Op op) { return op == Op::kUnshard || op == Op::kReshard || op == Op::kReduceScatter; }

// A unit's unshards, reshards and reductions, in order: the nodes that the units of one bucket have in common.
std::vector<std::int32_t> nodes_of(const StepGraph& graph, std::int32_t unit) {
  std::vector<std::int32_t> out;
  for (const auto& n : graph.nodes()) {
    if (n.unit == unit && together(n.op)) out.push_back(n.id);
  }
  return out;
}

// True when two units have the same lease pattern: unshards, reshards and reductions in the same passes and micro-batches, in any order.
bool alike(const StepGraph& graph, std::int32_t a, std::int32_t b) {
  const auto key = [&](std::int32_t id) {
    const Node& n = graph.nodes()[static_cast<std::size_t>(id)];
    return std::tuple(n.op, n.backward, n.micro);
  };
  auto of_a = nodes_of(graph, a), of_b = nodes_of(graph, b);
  const auto by_key = [&](std::int32_t x, std::int32_t y) { return key(x) < key(y); };
  std::sort(of_a.begin(), of_a.end(), by_key);
  std::sort(of_b.begin(), of_b.end(), by_key);
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [&](auto x, auto y) { return key(x) == key(y); });
}

// Merges two nodes of one kind. The earlier one of two unshards remains, and the later one of two reshards or reductions.
void merge(Edit& edit, std::int32_t a, std::int32_t b) {
  const bool first = edit.node(a).op == Op::kUnshard;
  const auto keep = edit.earlier(a, b) == first ? a : b, gone = keep == a ? b : a;
  const Node other = edit.node(gone);
  edit.replace(gone, keep);
  Node& kept = edit.node(keep);
  std::vector<std::int32_t> units = kept.also;
  units.insert(units.end(), other.also.begin(), other.also.end());
  units.insert(units.end(), {kept.unit, other.unit});
  std::sort(units.begin(), units.end());
  kept.unit = units.front();
  kept.also.assign(units.begin() + 1, units.end());
  for (const auto& e : other.after) {
    if (e.from != keep && edit.earlier(e.from, keep)) edit.connect(e.from, keep, e.kind);
  }
}

}  // namespace

Result<Rewritten> bucket(const StepGraph& graph, const std::vector<std::size_t>& unit_bytes, std::size_t bucket_bytes) {
  if (unit_bytes.size() != graph.units().size())
    return fail(
        invalid_argument(fmt::format("the bytes of {} units were given for a step of {} units", unit_bytes.size(), graph.units().size())));
  for (const auto& n : graph.nodes()) {
    if (!n.also.empty()) return fail(invalid_argument(fmt::format("{} (node {}) belongs to a bucket already", graph.label(n), n.id)));
  }
  std::vector<std::int32_t> in_order;
  for (const auto& n : graph.nodes()) {
    if (n.op == Op::kForward && n.unit >= 0 && std::find(in_order.begin(), in_order.end(), n.unit) == in_order.end())
      in_order.push_back(n.unit);
  }
  std::vector<std::vector<std::int32_t>> buckets;
  std::size_t filled = bucket_bytes;
  for (const auto unit : in_order) {
    const std::size_t bytes = unit_bytes[static_cast<std::size_t>(unit)];
    const bool fits = !buckets.empty() && filled + bytes <= bucket_bytes && alike(graph, buckets.back().front(), unit);
    if (!fits) buckets.emplace_back(), filled = 0;
    buckets.back().push_back(unit);
    filled += bytes;
    if (bytes >= bucket_bytes) filled = bucket_bytes;
  }
  Edit edit(graph);
  for (const auto& units : buckets) {
    for (std::size_t i = 1; i < units.size(); ++i) {
      for (const auto mine : nodes_of(graph, units[i])) {
        const Node n = edit.node(mine);
        const auto order = edit.order();
        const auto theirs = std::find_if(order.begin(), order.end(), [&](std::int32_t id) {
          const Node& o = edit.node(id);
          return id != mine && o.op == n.op && o.backward == n.backward && o.micro == n.micro && is_for(o, units[0]);
        });
        if (theirs != order.end()) merge(edit, *theirs, mine);
      }
    }
  }
  return edit.result();
}

}  // namespace shoal::fsdp
