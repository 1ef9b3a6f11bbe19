// What of a step graph has ended for certain when a node begins: by edges, and by order on each lane.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fsdp/graph/step_graph.h"

namespace shoal::fsdp {

class Order {
 public:
  Order() = default;
  explicit Order(const StepGraph& graph) {
    for (const auto& n : graph.nodes()) add(graph, n);
  }

  // The graph's next node. Earlier ones are there already.
  void add(const StepGraph& graph, const Node& node);
  // Whether node a has ended when node b begins.
  bool before(const Node& a, const Node& b) const {
    return a.id <= ended_[static_cast<std::size_t>(b.id)][static_cast<std::size_t>(lane_of(a.op))];
  }

 private:
  // Per lane, the last node that has ended for certain; -1: none.
  using Ended = std::array<std::int32_t, kNumLanes>;
  std::vector<Ended> ended_;
  Ended last_{-1, -1, -1};
};

}  // namespace shoal::fsdp
