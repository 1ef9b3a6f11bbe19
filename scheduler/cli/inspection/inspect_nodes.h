// Asks every living node in parallel for its own and its processes' objects, tasks, runtime environments or metrics.
#pragma once

#include "scheduler/cli/cluster.h"
#include "scheduler/cli/inspection/inspection_rows.h"

namespace shoal::scheduler::cli {

Result<InspectionReply> inspect_nodes(ClusterConnection& cluster, actors::Inspect::What what);

}  // namespace shoal::scheduler::cli
