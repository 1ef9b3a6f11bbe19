// The names that objects have in Python.
#pragma once

#include <string>
#include <utility>

#include "actors/session/session.h"

namespace shoal::python {

// The object that Python names by two texts of 32 hex digits. `id` has the job's id and its own; `place` has its owner's process and node.
std::pair<actors::ObjectKey, WorkerId> object_at(const std::string& id, const std::string& place);

}  // namespace shoal::python
