// Processes that run remote functions are actors of a class that no program has: they are shown as workers, not as actors.
#pragma once

#include "actors/cluster/cluster.h"

namespace shoal::actors {

inline constexpr const char* kFunctionWorker = "remote functions";

inline bool is_function_worker(const ActorRow& row) { return row.class_name == kFunctionWorker; }

}  // namespace shoal::actors
