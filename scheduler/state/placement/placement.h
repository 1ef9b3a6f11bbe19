// Placement of wants on nodes, as pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/cluster/specs.h"

namespace shoal::scheduler {

using NodeResources = std::map<NodeId, actors::Resources>;
using Load = std::map<NodeId, std::size_t>;  // processes by node; absent: 0

// Returns one node for each of `wants`, or nothing unless all fit into `room`, the free resources by node. Pack uses one node if all fit
// there; otherwise wants that follow each other share a node while it has room. Spread prefers the node with the fewest of these wants,
// then the smallest `load`. Strict pack uses one node for all, strict spread a different node for each. Pack tries the order of ranks, then
// of sizes. Pack and spread are first-fit searches that may miss a placement; the strict strategies miss none.
std::optional<std::vector<NodeId>> place(const std::vector<actors::Resources>& wants, const NodeResources& room,
                                         actors::Strategy strategy = actors::Strategy::kPack, const Load& load = {});

// Explains why `wants` cannot be placed in `room`, with the nearest node: "needs GPU 4; nearest fit: node 1f.. lacks GPU 4 (has 0)". With
// `whole`, the total of which `room` is the free part: "lacks GPU 1 (0 of 4 free)".
std::string explain(const std::vector<actors::Resources>& wants, const NodeResources& room,
                    actors::Strategy strategy = actors::Strategy::kPack, const NodeResources* whole = nullptr);

// The text that users see for a pending entry, made from that of explain(). busy(): the entry starts once others end.
// impossible(): no node could hold the entry; the text has a hint.
std::string busy(const std::string& why);
std::string impossible(const std::string& why);

// The error ResourceExhausted/Infeasible with a hint. `why`: the text of explain().
Error infeasible(const std::string& why);

bool matches(const std::map<std::string, std::string>& labels, const std::vector<actors::LabelMatch>& wanted);
std::string to_string(const std::vector<actors::LabelMatch>& wanted);  // "zone=a|b, disk!=slow"

}  // namespace shoal::scheduler
