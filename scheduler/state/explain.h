// The reasons why entries of the queue wait, for rows and warnings. Searching all nodes for each entry takes time, so that searches are
// bounded per tick.
#pragma once

#include <string>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

std::string why(const Parts& s, const Pending& entry);
// Explains entries, and warns the jobs of those that have waited for a moment.
void explain_pending(Parts& s);
// Explains the newest entry at once, so that the first list of rows shows its reason. The warning comes later.
void explain_newcomer(Parts& s);

}  // namespace shoal::scheduler
