// Which nodes of a step graph have certainly ended when a node begins: by edges, and by the order on each lane.
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

  // Adds the graph's next node; earlier nodes are already added.
  void add(const StepGraph& graph, const Node& node);
  // True when node a has ended before node b begins.
  bool before(const Node& a, const Node& b) const {
    return a.id <= ended_[static_cast<std::size_t>(b.id)][static_cast<std::size_t>(lane_of(a.op))];
  }

 private:
  // By lane: the last node that has certainly ended; -1: none.
  using Ended = std::array<std::int32_t, kNumLanes>;
  std::vector<Ended> ended_;
  Ended last_{-1, -1, -1};
};

}  // namespace shoal::fsdp
