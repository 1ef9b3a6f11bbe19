// What waits to be told to a node that cannot be reached, in fewer words: otherwise it would grow with every reference that comes and goes.
#pragma once

#include <deque>

#include "actors/wire/messages.h"

namespace shoal::scheduler {

// Comes to the same counts, and on the way there frees nothing sooner. What is added comes first, then what is asked for, then what is
// taken off, then deaths; each holder of an object is named once, and not at all when nothing remains. Pure.
std::deque<actors::CountObjects::Change> merged(const std::deque<actors::CountObjects::Change>& waiting);

}  // namespace shoal::scheduler
