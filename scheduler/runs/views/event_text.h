// An event of a run as one English sentence, and a text as Python reads it.
#pragma once

#include <string>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

std::string event_text(const Event& event);

// The text as a literal.
std::string python_text(const std::string& text);

}  // namespace shoal::scheduler::runs
