// An editable step graph for passes: nodes are inserted, moved, replaced and removed, and the edges follow.
//
// A node keeps its number during editing: its id in the original graph, or the result of put_before() and put_after(). Edges use these
// numbers, too; done() renumbers.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/passes/passes.h"

namespace shoal::fsdp {

class Edit {
 public:
  explicit Edit(const StepGraph& graph);

  // The current nodes, in order. Copy it to iterate while editing.
  const std::vector<std::int32_t>& order() const { return order_; }
  Node& node(std::int32_t number) { return nodes_[static_cast<std::size_t>(number)]; }
  const Node& node(std::int32_t number) const { return nodes_[static_cast<std::size_t>(number)]; }
  std::size_t position(std::int32_t number) const;
  bool earlier(std::int32_t a, std::int32_t b) const { return position(a) < position(b); }

  std::int32_t put_before(std::int32_t at, Node node) { return put(position(at), std::move(node)); }
  std::int32_t put_after(std::int32_t at, Node node) { return put(position(at) + 1, std::move(node)); }
  std::int32_t put_last(Node node) { return put(order_.size(), std::move(node)); }
  // Moves a node to a place in order(), counted without the node itself.
  void move_to(std::int32_t number, std::size_t place);
  // Adds an edge: `from` ends before `to` begins. No effect when it exists.
  void connect(std::int32_t from, std::int32_t to, EdgeKind kind);
  void disconnect(std::int32_t from, std::int32_t to);
  // Removes `number` and moves its outgoing edges to `by`.
  void replace(std::int32_t number, std::int32_t by);
  // Removes `number` and connects its predecessors to its successors.
  void remove(std::int32_t number);

  // Returns Internal if an edge leads backwards, because a pass moved a node too far.
  Result<Rewritten> result() const;

 private:
  std::int32_t put(std::size_t place, Node node);
  void take_out(std::int32_t number);

  std::vector<std::string> units_;
  std::vector<Node> nodes_;  // by number
  std::vector<std::int32_t> order_;
  std::size_t given_ = 0;  // number of nodes of the original graph
};

}  // namespace shoal::fsdp
