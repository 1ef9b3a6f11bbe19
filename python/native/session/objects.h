// Names of objects in Python.
#pragma once

#include <string>
#include <utility>

#include "actors/session/session.h"

namespace shoal::python {

// An object by its id (the job's and its own) and its place (its owner's process and node), 32 hex digits each.
std::pair<actors::ObjectKey, WorkerId> object_at(const std::string& id, const std::string& place);

}  // namespace shoal::python
