// The reasons why entries of the queue wait, for rows and warnings. Searching all nodes for each entry takes time, so that searches are
// bounded per tick.
#pragma once

#include <string>
#include <vector>

#include "scheduler/state/parts.h"

namespace shoal::scheduler {

std::string why(const Parts& s, const Pending& entry);
// Texts about all entries: names with reasons. Equal texts become one with their number, and the texts are bounded (StateOptions).
std::vector<std::string> summed_reasons(const Parts& s);
// Explains entries, and warns the jobs of those that have waited for a moment.
void explain_pending(Parts& s);
// Explains the newest entry at once, so that the first list of rows shows its reason. The warning comes later.
void explain_newcomer(Parts& s);

}  // namespace shoal::scheduler
