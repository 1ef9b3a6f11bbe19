#include "fsdp/graph/order.h"

#include <algorithm>

namespace shoal::fsdp {

void Order::add(const StepGraph& graph, const Node& node) {
  Ended ended{-1, -1, -1};
  const auto follow = [&](std::int32_t from) {
    const auto& known = ended_[static_cast<std::size_t>(from)];
    for (std::size_t lane = 0; lane < kNumLanes; ++lane) ended[lane] = std::max(ended[lane], known[lane]);
    auto& own = ended[static_cast<std::size_t>(lane_of(graph.nodes()[static_cast<std::size_t>(from)].op))];
    own = std::max(own, from);
  };
  for (const auto& e : node.after) follow(e.from);
  auto& last = last_[static_cast<std::size_t>(lane_of(node.op))];
  if (last >= 0) follow(last);
  last = node.id;
  ended_.push_back(ended);
}

}  // namespace shoal::fsdp
