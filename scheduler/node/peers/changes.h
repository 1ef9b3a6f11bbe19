// Merges the changes of counts that wait for a node which cannot be reached. Otherwise their queue would grow with every reference made and
// dropped.
#pragma once

#include <deque>

#include "actors/protocol/wire/node_messages.h"

namespace shoal::scheduler {

// Returns changes that lead to the same counts, and on the way free no object that would stay. Additions come first, then requests, then
// removals, then deaths. Each holder of an object occurs once, or not at all if its changes cancel out. Pure.
std::deque<actors::CountObjects::Change> merged(const std::deque<actors::CountObjects::Change>& waiting);

}  // namespace shoal::scheduler
