// Merges the changes that wait for a node that cannot be reached. Without that, the queue would grow with every reference made and dropped.
#pragma once

#include <deque>

#include "actors/wire/node_messages.h"

namespace shoal::scheduler {

// Returns changes that lead to the same counts and free nothing sooner on the way. Additions come first, then requests, then removals, then
// deaths. Each holder of an object occurs once, or not at all if nothing remains. Pure.
std::deque<actors::CountObjects::Change> merged(const std::deque<actors::CountObjects::Change>& waiting);

}  // namespace shoal::scheduler
