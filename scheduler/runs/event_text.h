// An event of a run as one English sentence, and words as a shell or Python reads them.
#pragma once

#include <string>

#include "scheduler/runs/run.h"

namespace shoal::scheduler::runs {

std::string event_text(const Event& event);

// The text in quotes where its characters need them.
std::string shell_word(const std::string& text);
std::string python_text(const std::string& text);

}  // namespace shoal::scheduler::runs
