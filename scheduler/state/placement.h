// Where things go: pure functions over what nodes have.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/cluster.h"

namespace shoal::scheduler {

using Room = std::map<NodeId, actors::Resources>;
using Load = std::map<NodeId, std::size_t>;  // how much is there already; absent: nothing

// One node for each of `wants`, all or nothing. Pack: on one node if they fit, otherwise neighbours in rank share a node as long as it
// has room; spread: each where least is, of these wants, then by `load`; strict spread: each on a node of its own. Pack and spread take
// the first fit in the order of ranks, then of sizes: they may miss one that only another order finds. The strict ones miss none.
std::optional<std::vector<NodeId>> place(const std::vector<actors::Resources>& wants, const Room& room,
                                         actors::Strategy strategy = actors::Strategy::kPack, const Load& load = {});

// Why `wants` cannot be placed in `room`, naming the node that comes nearest: "needs GPU 4; nearest fit: node 1f..
// lacks GPU 4 (has 0)". With `whole`, of which `room` is what is free: "lacks GPU 1 (0 of 4 free)".
std::string explain(const std::vector<actors::Resources>& wants, const Room& room, actors::Strategy strategy = actors::Strategy::kPack,
                    const Room* whole = nullptr);

// What people read of something that waits, from explain's: that it will start, or that it cannot, and what to do.
std::string busy(const std::string& why);
std::string impossible(const std::string& why);

// ResourceExhausted/Infeasible, with what to do; `why` is explain's.
Error infeasible(const std::string& why);

bool matches(const std::map<std::string, std::string>& labels, const std::vector<actors::LabelMatch>& wanted);
std::string to_string(const std::vector<actors::LabelMatch>& wanted);  // "zone=a|b, disk!=slow"

}  // namespace shoal::scheduler
