#include "fsdp/graph/passes/edit.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/core/check.h"

namespace shoal::fsdp {

Edit::Edit(const StepGraph& graph) : units_(graph.units()), nodes_(graph.nodes()), given_(graph.nodes().size()) {
  for (const auto& n : nodes_) order_.push_back(n.id);
}

std::size_t Edit::position(std::int32_t number) const {
  const auto found = std::find(order_.begin(), order_.end(), number);
  SHOAL_CHECK(found != order_.end(), "a pass uses a node that it removed");
  return static_cast<std::size_t>(found - order_.begin());
}

std::int32_t Edit::put(std::size_t place, Node node) {
  const auto number = static_cast<std::int32_t>(nodes_.size());
  nodes_.push_back(std::move(node));
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(place), number);
  return number;
}

void Edit::move_to(std::int32_t number, std::size_t place) {
  take_out(number);
  order_.insert(order_.begin() + static_cast<std::ptrdiff_t>(place), number);
}

void Edit::connect(std::int32_t from, std::int32_t to, EdgeKind kind) {
  auto& after = node(to).after;
  if (from != to && std::none_of(after.begin(), after.end(), [&](const Edge& e) { return e.from == from; })) after.push_back({from, kind});
}

void Edit::disconnect(std::int32_t from, std::int32_t to) {
  std::erase_if(node(to).after, [&](const Edge& e) { return e.from == from; });
}

void Edit::replace(std::int32_t number, std::int32_t by) {
  take_out(number);
  for (const auto other : order_) {
    auto& after = node(other).after;
    const auto edge = std::find_if(after.begin(), after.end(), [&](const Edge& e) { return e.from == number; });
    if (edge == after.end()) continue;
    const EdgeKind kind = edge->kind;
    after.erase(edge);
    connect(by, other, kind);
  }
}

void Edit::remove(std::int32_t number) {
  take_out(number);
  for (const auto other : order_) {
    auto& after = node(other).after;
    if (std::none_of(after.begin(), after.end(), [&](const Edge& e) { return e.from == number; })) continue;
    disconnect(number, other);
    for (const auto& e : node(number).after) connect(e.from, other, EdgeKind::kOrder);
  }
}

void Edit::take_out(std::int32_t number) { order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(position(number))); }

Result<Rewritten> Edit::result() const {
  std::vector<std::int32_t> ids(nodes_.size(), -1);
  Rewritten out{StepGraph(units_), {}};
  for (const auto number : order_) {
    Node n = node(number);
    for (auto& e : n.after) e.from = ids[static_cast<std::size_t>(e.from)];
    auto id = out.graph.add(std::move(n));
    if (!id) return fail(internal(fmt::format("a pass placed a node of the step graph wrongly: {}", id.error().message())));
    ids[static_cast<std::size_t>(number)] = *id;
    out.from.push_back(static_cast<std::size_t>(number) < given_ ? number : -1);
  }
  return out;
}

}  // namespace shoal::fsdp
