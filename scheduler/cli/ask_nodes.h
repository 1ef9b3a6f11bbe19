// Asks every living node in parallel for its own and its processes' objects, tasks or runtime environments.
#pragma once

#include "scheduler/cli/commands.h"
#include "scheduler/cli/told_rows.h"

namespace shoal::scheduler::cli {

Result<Told> ask_nodes(Looking& looking, actors::Inspect::What what);

}  // namespace shoal::scheduler::cli
