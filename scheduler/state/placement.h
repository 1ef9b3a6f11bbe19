// Where things go: pure functions over what nodes have.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"

namespace shoal::scheduler {

using Room = std::map<NodeId, actors::Resources>;

// One node for each of `wants`, all or nothing, packed: neighbours in rank share a node as long as it has room. First
// fit in the order of ranks and node ids; it may miss a fit that only another order finds.
std::optional<std::vector<NodeId>> place(const std::vector<actors::Resources>& wants, Room room);

// Why `wants` cannot be placed in `room`, naming the node that comes nearest: "needs GPU 4; nearest fit: node 1f..
// lacks GPU 4 (has 0)".
std::string explain(const std::vector<actors::Resources>& wants, const Room& room);

}  // namespace shoal::scheduler
