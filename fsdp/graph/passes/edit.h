// A step graph under change: nodes are put in, moved, replaced and taken out, and the edges follow. What passes are written with.
//
// A node keeps its number while the graph is edited: its id in the graph it came from, or what put_before() and put_after() returned. Edges
// between nodes are in these numbers, too; done() counts anew.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/graph/passes/passes.h"

namespace shoal::fsdp {

class Edit {
 public:
  explicit Edit(const StepGraph& graph);

  // The nodes that are there now, in order. Take a copy to iterate while editing.
  const std::vector<std::int32_t>& order() const { return order_; }
  Node& node(std::int32_t number) { return nodes_[static_cast<std::size_t>(number)]; }
  const Node& node(std::int32_t number) const { return nodes_[static_cast<std::size_t>(number)]; }
  std::size_t position(std::int32_t number) const;
  bool earlier(std::int32_t a, std::int32_t b) const { return position(a) < position(b); }

  std::int32_t put_before(std::int32_t at, Node node) { return put(position(at), std::move(node)); }
  std::int32_t put_after(std::int32_t at, Node node) { return put(position(at) + 1, std::move(node)); }
  std::int32_t put_last(Node node) { return put(order_.size(), std::move(node)); }
  // To a place in order(), counted after it was taken out of its own.
  void move_to(std::int32_t number, std::size_t place);
  // `from` ends before `to` begins. An edge that is there already stays.
  void connect(std::int32_t from, std::int32_t to, EdgeKind kind);
  void disconnect(std::int32_t from, std::int32_t to);
  // What came after `number` comes after `by` now, and `number` is gone.
  void replace(std::int32_t number, std::int32_t by);
  // Whatever came after it comes after what it came after.
  void remove(std::int32_t number);

  // Internal when an edge leads backwards: a pass moved a node too far.
  Result<Rewritten> done() const;

 private:
  std::int32_t put(std::size_t place, Node node);
  void take_out(std::int32_t number);

  std::vector<std::string> units_;
  std::vector<Node> nodes_;  // by number
  std::vector<std::int32_t> order_;
  std::size_t given_ = 0;  // how many came from the graph
};

}  // namespace shoal::fsdp
